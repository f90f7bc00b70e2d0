-- Appends an event. It returns 1, -1 or -2, as swap does.
-- KEYS ready, events; ARGV event, limit of events
if redis.call('EXISTS', KEYS[1]) == 0 then return -1 end
if redis.call('XLEN', KEYS[2]) >= tonumber(ARGV[2]) then return -2 end
redis.call('XADD', KEYS[2], '*', 'e', ARGV[1])
return 1
