-- Forward authentication for HAProxy 3.0 and later: asks a check of `tollgate serve` about each request.
--
--   global
--       lua-load /etc/haproxy/haproxy.lua
--       httpclient.retries 0
--       httpclient.timeout.connect 1s
--
--   frontend web
--       http-request lua.tollgate http://127.0.0.1:8081/check/login x-api-key,x-plan
--       http-request deny deny_status 503 unless { var(txn.tollgate_passed) -m bool }
--
-- The second argument names the headers that the check reads; without any, write `none`. The check needs
-- `trusted: ["127.0.0.1/32"]`. A request that it denies ends with its answer. `txn.tollgate_passed` is true if it passes the
-- request, and unset if it gives no answer within two seconds. If the server requires a token, set TOLLGATE_TOKEN in HAProxy's
-- environment.

local TIMEOUT_MS = 2000
-- HAProxy's client has room for about a hundred headers. Two values tell the check that there are several.
local MAX_VALUES = 2
local TOKEN = os.getenv("TOLLGATE_TOKEN")

local function question(txn, names)
    local headers, given = {}, txn.http:req_get_headers()
    for name in names:lower():gmatch("[^,]+") do
        local values = given[name]
        if values then
            headers[name] = { [0] = values[0] }
            for place = 1, math.min(#values, MAX_VALUES - 1) do headers[name][place] = values[place] end
        end
    end
    headers["x-forwarded-for"] = { [0] = txn.f:src() }
    headers["x-forwarded-method"] = { [0] = txn.f:method() }
    headers["x-forwarded-uri"] = { [0] = txn.f:pathq() }
    headers["x-forwarded-host"] = given["host"] and { [0] = given["host"][0] }
    if TOKEN then headers["authorization"] = { [0] = "Bearer " .. TOKEN } end
    return headers
end

core.register_action("tollgate", { "http-req" }, function(txn, url, names)
    local answer = core.httpclient():get({ url = url, headers = question(txn, names), timeout = TIMEOUT_MS })
    local status, kind = answer.status or 0, answer.headers and answer.headers["content-type"]
    if status >= 200 and status < 300 then
        txn:set_var("txn.tollgate_passed", true)
        return
    end
    -- A 5xx without a problem is of HAProxy's client, which has no answer.
    if status < 400 or (status >= 500 and not (kind and kind[0] == "application/problem+json")) then return end
    local reply = txn:reply({ status = status, body = answer.body })
    for name, values in pairs(answer.headers) do
        for place = 0, #values do
            if name ~= "connection" and name ~= "content-length" and name ~= "transfer-encoding" then
                reply:add_header(name, values[place])
            end
        end
    end
    txn:done(reply)
end, 2)
