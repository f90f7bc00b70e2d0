-- Returns two lists of the commands of popups: those that the user may not run, and those that the server does not have. It
-- changes nothing but a key: for all other commands that key has the wrong type.
-- KEYS probe
local refused, unknown, k = {}, {}, KEYS[1]
local function try(name, ...)
	local answer = redis.pcall(...)
	local err = type(answer) == 'table' and type(answer.err) == 'string' and answer.err or ''
	if string.find(err, 'Unknown Redis command', 1, true) then unknown[#unknown+1] = name
	elseif string.find(err, 'The user executing the script', 1, true) or string.find(err, 'NOPERM', 1, true) then refused[#refused+1] = name end
end
try('set', 'SET', k, '', 'PX', 60000)
if #refused + #unknown > 0 then return {refused, unknown} end
for _, name in ipairs({'get', 'mget', 'exists', 'xlen'}) do try(name, name, k) end
try('pexpire', 'PEXPIRE', k, 60000)
try('hget', 'HGET', k, 'f')
try('hmget', 'HMGET', k, 'f')
try('hset', 'HSET', k, 'f', 'v')
try('xadd', 'XADD', k, '*', 'f', 'v')
try('xrange', 'XRANGE', k, '-', '+', 'COUNT', 1)
try('xdel', 'XDEL', k, '0-1')
try('time', 'TIME')
try('info', 'INFO', 'server')
try('del', 'DEL', k)
return {refused, unknown}
