-- Moves an event that cannot be decoded to the stream "bad".
-- KEYS events, bad; ARGV id, event
redis.call('XADD', KEYS[2], '*', 'e', ARGV[2])
return redis.call('XDEL', KEYS[1], ARGV[1])
