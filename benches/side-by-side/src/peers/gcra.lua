-- The generic cell rate algorithm, as services have it: the theoretical arrival time in one key, on the server's clock.
-- KEYS[1]: the bucket; ARGV: microseconds a token, tokens of a full bucket, tokens asked for
local token, capacity, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local arrival = tonumber(redis.call('GET', KEYS[1]) or now)
if arrival < now then arrival = now end
local next = arrival + cost * token
local early = next - capacity * token - now
if early > 0 then return {0, 0, early} end
redis.call('SET', KEYS[1], next, 'PX', math.ceil((next - now) / 1000))
return {1, math.floor(-early / token), 0}
