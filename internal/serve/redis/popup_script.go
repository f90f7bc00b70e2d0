package redis

// The scripts. A stored state is its version in 8 bytes, the most significant first,
// and then the state, so that scripts compare versions without reading states. All
// keys of a script are in one shard, hence in one slot of a cluster.
const (
	// swapScript replaces a state if its version is the expected one, and appends the
	// event.
	//	KEYS state, ready, events
	//	ARGV expected version, value, TTL in ms or 0, event or "", most events or "" for any number, version 0
	// It returns 1; 0: another version; -1: not ready; -2: too many events; -3: no state
	// here, look it up.
	swapScript = `
local got = redis.call('MGET', KEYS[1], KEYS[2])
if not got[2] then return -1 end
local old, version = got[1], ARGV[6]
if old then version = string.sub(old, 1, 8) elseif ARGV[3] ~= '0' then return -3 end
if version ~= ARGV[1] then return 0 end
if ARGV[4] ~= '' and ARGV[5] ~= '' and redis.call('XLEN', KEYS[3]) >= tonumber(ARGV[5]) then return -2 end
if ARGV[3] == '0' then redis.call('SET', KEYS[1], ARGV[2])
else redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3]) end
if ARGV[4] ~= '' then redis.call('XADD', KEYS[3], '*', 'e', ARGV[4]) end
return 1`

	// restoreScript puts states that the database has, unless newer ones are here.
	//	KEYS a key that must exist, states
	//	ARGV TTL in ms or 0, 1: only over states that are here, values
	restoreScript = `
if redis.call('EXISTS', KEYS[1]) == 0 then return -1 end
for i = 2, #KEYS do
	local old, new = redis.call('GET', KEYS[i]), ARGV[i+1]
	local put = ARGV[2] == '0'
	if old then put = struct.unpack('>I8', old) < struct.unpack('>I8', new) end
	if put and ARGV[1] == '0' then redis.call('SET', KEYS[i], new)
	elseif put then redis.call('SET', KEYS[i], new, 'PX', ARGV[1]) end
end
return 1`

	// readyScript ends a rebuild of this process that nothing has upset.
	//	KEYS ready, rebuild; ARGV token, value
	readyScript = `
if redis.call('GET', KEYS[2]) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2])
return 1`

	// ackScript forgets events that the database has, drainShard of them at most.
	//	KEYS events; ARGV group, ids
	ackScript = `
redis.call('XACK', KEYS[1], ARGV[1], unpack(ARGV, 2))
return redis.call('XDEL', KEYS[1], unpack(ARGV, 2))`

	// setAsideScript moves an event that cannot be read to where people look for it.
	//	KEYS events, bad; ARGV group, id, event
	setAsideScript = `
redis.call('XADD', KEYS[2], '*', 'e', ARGV[3])
redis.call('XACK', KEYS[1], ARGV[1], ARGV[2])
return redis.call('XDEL', KEYS[1], ARGV[2])`

	// leaveScript removes a consumer that has nothing pending.
	//	KEYS events; ARGV group, consumer
	leaveScript = `
if #redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', 1, ARGV[2]) > 0 then return 0 end
return redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2])`
)
