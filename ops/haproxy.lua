-- Forward authentication for HAProxy 2.6 and later: asks a check of `tollgate serve` about each request.
--
--   global
--       lua-load /etc/haproxy/haproxy.lua
--
--   frontend web
--       http-request lua.tollgate http://127.0.0.1:8081/check/login
--       http-request deny deny_status 503 if { var(txn.tollgate_failed) -m bool }
--
-- The check needs `trusted: ["127.0.0.1/32"]`. A request that it denies ends with its answer. If it gives none within two
-- seconds, `txn.tollgate_failed` is true, and the next rules decide.

local TIMEOUT_MS = 2000

-- About the client's connection or its body, or stated below.
local LEFT_OUT = {
    ["connection"] = true,
    ["content-length"] = true,
    ["expect"] = true,
    ["host"] = true,
    ["keep-alive"] = true,
    ["te"] = true,
    ["transfer-encoding"] = true,
    ["upgrade"] = true,
    ["x-original-uri"] = true,
}

local function question(txn)
    local headers, given = {}, txn.http:req_get_headers()
    for name, values in pairs(given) do
        if not LEFT_OUT[name] then headers[name] = values end
    end
    -- The lists of HAProxy begin at 0.
    headers["x-forwarded-for"] = { [0] = txn.f:src() }
    headers["x-forwarded-method"] = { [0] = txn.f:method() }
    headers["x-forwarded-uri"] = { [0] = txn.f:pathq() }
    headers["x-forwarded-host"] = given["host"]
    return headers
end

core.register_action("tollgate", { "http-req" }, function(txn, url)
    local answer = core.httpclient():get({ url = url, headers = question(txn), timeout = TIMEOUT_MS })
    if answer.status and answer.status >= 200 and answer.status < 300 then return end
    local kind = answer.headers and answer.headers["content-type"]
    -- Any other answer is HAProxy's own, for a server that it did not reach.
    if not kind or kind[0] ~= "application/problem+json" then
        txn:set_var("txn.tollgate_failed", true)
        return
    end
    local reply = txn:reply({ status = answer.status, body = answer.body })
    for name, values in pairs(answer.headers) do
        for place = 0, #values do
            if not LEFT_OUT[name] and values[place] then reply:add_header(name, values[place]) end
        end
    end
    txn:done(reply)
end, 1)
