-- Removes a key of an owner, and returns 1. It returns 0 if the key is another one's.
-- KEYS key; ARGV owner
if redis.call("GET", KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call("DEL", KEYS[1])
