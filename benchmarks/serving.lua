-- Requests of single rows in turn, and answers compared with those that the head gives in Python; see benchmarks/serving.py.
local bodies, expected, turn, delay_ms = {}, {}, 0, 0
wrong, answered, first, second = 0, 0, 0, 0
local threads = {}

function setup(thread)
   table.insert(threads, thread)
end

function init(arguments)
   delay_ms = tonumber(arguments[2])
   local file = dofile(arguments[1])
   bodies, expected = file.bodies, file.expected
   wrk.method = "POST"
   wrk.headers["Content-Type"] = "application/json"
end

function delay()
   return delay_ms
end

function request()
   turn = turn % #bodies + 1
   return wrk.format(nil, nil, nil, bodies[turn])
end

local function differs(body)
   local version = body:match('"model_version": "(%w+)"')
   local right = expected[version] and expected[version][body:match('"id": "(%d+)"')]
   if not right or body:match('"label": "([^"]*)"') ~= right.label then return true end
   if body:match('"prediction_set": (%b[])') ~= right.set then return true end
   local place = 0
   for number in body:match('"proba": (%b[])'):gmatch("[%d.eE+-]+") do
      place = place + 1
      if math.abs(tonumber(number) - right.proba[place]) > 1e-6 then return true end
   end
   if right.first then first = first + 1 else second = second + 1 end
   return place ~= #right.proba
end

function response(status, headers, body)
   answered = answered + 1
   if status ~= 200 or differs(body) then wrong = wrong + 1 end
end

function done(summary, latency, requests)
   local totals = {wrong = 0, answered = 0, first = 0, second = 0}
   for _, thread in ipairs(threads) do
      for name in pairs(totals) do totals[name] = totals[name] + thread:get(name) end
   end
   local errors = summary.errors
   io.write(string.format(
      '{"requests": %d, "seconds": %.3f, "p50_ms": %.2f, "p99_ms": %.2f, "max_ms": %.2f, "wrong": %d, "answered": %d, ' ..
      '"first_head": %d, "second_head": %d, "lost": %d}\n',
      summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e3, latency:percentile(99) / 1e3,
      latency.max / 1e3, totals.wrong, totals.answered, totals.first, totals.second,
      errors.connect + errors.read + errors.write + errors.status + errors.timeout))
end
