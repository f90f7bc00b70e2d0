-- Writes states unless Redis has newer ones. It returns -1 if the first key is missing.
-- KEYS a key that must exist, states; ARGV TTL in ms or 0, 1: replace existing states only, values
if redis.call('EXISTS', KEYS[1]) == 0 then return -1 end
for i = 2, #KEYS do
	local old, new = redis.call('GET', KEYS[i]), ARGV[i+1]
	local put = ARGV[2] == '0'
	if old then put = struct.unpack('>I8', old) < struct.unpack('>I8', new) end
	if put and ARGV[1] == '0' then redis.call('SET', KEYS[i], new)
	elseif put then redis.call('SET', KEYS[i], new, 'PX', ARGV[1]) end
end
return 1
