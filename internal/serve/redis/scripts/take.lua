-- Gives the lease on the events to a process, if there are any, and they belong to its database, and returns 1. That the server
-- has no memory for the lease is ignored: events that two processes store are stored once.
-- KEYS drainer, events, database; ARGV token, lease in ms, id of the database
local owner = redis.call('GET', KEYS[1])
if owner and owner ~= ARGV[1] or redis.call('XLEN', KEYS[2]) == 0 or redis.call('HGET', KEYS[3], 'id') ~= ARGV[3] then return 0 end
redis.pcall('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
