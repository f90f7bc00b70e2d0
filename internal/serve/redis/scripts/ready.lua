-- Sets the mark if this process still has the lease, which is lost with the states.
-- KEYS ready, rebuild; ARGV token, mark
if redis.call('GET', KEYS[2]) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2])
return 1
