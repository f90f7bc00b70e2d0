-- Replaces a state if it has the expected version, and appends the event.
-- KEYS state, ready, events, other states of the user
-- ARGV expected version, value, TTL in ms or 0, event, limit of events, version 0, expected versions of the other states
-- It returns 1; 0 for another version; -1 if states are missing; -2 if too many events wait; -3 if the state must be read from
-- the database first.
local got = redis.call('MGET', KEYS[1], KEYS[2])
if not got[2] then return -1 end
local old, version = got[1], ARGV[6]
if old then version = string.sub(old, 1, 8) elseif ARGV[3] ~= '0' then return -3 end
if version ~= ARGV[1] then return 0 end
for i = 4, #KEYS do
	local other = redis.call('GET', KEYS[i])
	if not other and ARGV[3] ~= '0' then return -3 end
	if (other and string.sub(other, 1, 8) or ARGV[6]) ~= ARGV[i+3] then return 0 end
end
if redis.call('XLEN', KEYS[3]) >= tonumber(ARGV[5]) then return -2 end
if ARGV[3] == '0' then redis.call('SET', KEYS[1], ARGV[2])
else redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3]) end
redis.call('XADD', KEYS[3], '*', 'e', ARGV[4])
return 1
