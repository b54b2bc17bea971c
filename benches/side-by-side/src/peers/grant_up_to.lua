-- The same for several requests of one token each: says how many of them are granted.
-- KEYS[1]: the bucket; ARGV: microseconds a token, tokens of a full bucket, requests
local token, capacity, asked = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local arrival = tonumber(redis.call('GET', KEYS[1]) or now)
if arrival < now then arrival = now end
local granted = math.min(asked, math.floor((now + capacity * token - arrival) / token))
if granted <= 0 then return 0 end
local next = arrival + granted * token
redis.call('SET', KEYS[1], next, 'PX', math.ceil((next - now) / 1000))
return granted
