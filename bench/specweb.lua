-- The request mix of SPECweb99's static part, for wrk: `wrk -s bench/specweb.lua URL -- DIRECTORIES`.
--
-- Class 0 to 3 with 35, 50, 14 and 1 % of the requests; the directory by Zipf's law; the file within
-- its class by Zipf's law over the order of popularity that SPECweb99 gives (its documentation, section on the
-- file mix). The seed is fixed, so two servers get the same stream from the same number of threads.
-- wrk is a closed loop: it asks again only when it has its answer, so a server that stalls is asked less, and the
-- latencies leave out what a visitor would have waited for in the meantime (coordinated omission).

local threads = 0

function setup(thread)
   threads = threads + 1
   thread:set("number", threads)
end

-- Partial sums of weights, to be searched by a random number.
local function cumulative(weights)
   local sums, total = {}, 0
   for i = 1, #weights do
      total = total + weights[i]
      sums[i] = total
   end
   return sums
end

local function draw(sums)
   local wanted = math.random() * sums[#sums]
   local low, high = 1, #sums
   while low < high do
      local middle = math.floor((low + high) / 2)
      if sums[middle] < wanted then low = middle + 1 else high = middle end
   end
   return low
end

local directories, classes, files, requests

function init(arguments)
   local count = tonumber(arguments[1]) or 1
   math.randomseed(20260101 + number)
   local weights = {}
   for i = 1, count do weights[i] = 1 / i end
   directories = cumulative(weights)
   classes = cumulative({ 35, 50, 14, 1 })
   -- The fifth file is the most popular, then the fourth, the sixth and so on.
   files = cumulative({ 1 / 9, 1 / 6, 1 / 4, 1 / 2, 1, 1 / 3, 1 / 5, 1 / 7, 1 / 8 })
   requests = {}
end

function request()
   local path = string.format("/dir%05d/class%d_%d", draw(directories) - 1, draw(classes) - 1, draw(files))
   local made = requests[path]
   if not made then
      made = wrk.format("GET", path)
      requests[path] = made
   end
   return made
end

-- One line of `key value` pairs that scripts read; wrk's own report stays above it.
function done(summary, latency, _)
   local errors = summary.errors
   io.write(string.format(
      "summary requests %d seconds %.3f bytes %d p50_us %.0f p90_us %.0f p99_us %.0f p999_us %.0f max_us %.0f failed %d status %d\n",
      summary.requests, summary.duration / 1000000, summary.bytes, latency:percentile(50), latency:percentile(90),
      latency:percentile(99), latency:percentile(99.9), latency.max,
      errors.connect + errors.read + errors.write + errors.timeout, errors.status))
end
