-- Returns the id and the name of the database that the keys belong to. If there is none, it is the one given. Nothing is written
-- that is there already, so it succeeds without memory, too.
-- KEYS database; ARGV id, name
local found = redis.call('HMGET', KEYS[1], 'id', 'name')
if found[1] then return found end
redis.call('HSET', KEYS[1], 'id', ARGV[1], 'name', ARGV[2])
return ARGV
