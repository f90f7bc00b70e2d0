-- Asks for a random offset with each request.
-- Arguments: the path, the number of offsets (0 to N-1), the seed.
dofile("report.lua")

local path, offsets

function init(args)
  path, offsets = args[1], tonumber(args[2])
  math.randomseed(tonumber(args[3]))
end

function request()
  return wrk.format("GET", path .. "?offset=" .. math.random(0, offsets - 1))
end
