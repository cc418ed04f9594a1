-- The percentiles of `headway analyze`, from the rows of one run or of several in a view `requests`.
-- Nearest rank, exact to a bucket of 0.1 %. A figure that requests without a latency could move is null.
WITH measured AS (
    SELECT start_ns,
           first_byte_ns,
           handshake_ns,
           connection,
           error IS NULL AS is_complete,
           coalesce(error, 'ok') AS outcome,
           CASE WHEN end_ns > intended_ns THEN end_ns - intended_ns ELSE 0 END AS response_ns,
           CASE WHEN end_ns > start_ns THEN end_ns - start_ns ELSE 0 END AS service_ns,
           CASE WHEN error IN ('abandoned', 'no-connection', 'no-port', 'no-descriptor') THEN 1 ELSE 0 END AS untimed
    FROM requests
    WHERE NOT warmup
),
known AS (
    SELECT CAST(sum(untimed) AS DOUBLE) / CAST(count(*) AS DOUBLE) AS untimed_share
    FROM measured
    HAVING sum(CASE WHEN outcome = 'no-connection' THEN 1 ELSE 0 END) = 0
       AND CAST(sum(untimed) AS DOUBLE) / CAST(count(*) AS DOUBLE) < 0.001e0
),
timed AS (
    SELECT 'response' AS of_what, response_ns AS ns FROM measured WHERE untimed = 0
    UNION ALL
    SELECT 'service', service_ns FROM measured
    WHERE untimed = 0 AND outcome NOT IN ('refused', 'unreachable', 'connect-timed-out') AND connection <> 4294967295
    UNION ALL
    SELECT 'complete', response_ns FROM measured WHERE is_complete
    UNION ALL
    SELECT 'first byte', CASE WHEN first_byte_ns > start_ns THEN first_byte_ns - start_ns ELSE 0 END
    FROM measured WHERE untimed = 0 AND first_byte_ns IS NOT NULL
    UNION ALL
    SELECT 'handshake', handshake_ns FROM measured WHERE untimed = 0 AND handshake_ns IS NOT NULL
),
-- A bucket drops all but the first eleven bits. This is the number of bits that it drops.
dropped AS (
    SELECT of_what, ns,
           CASE WHEN ns < 2048 THEN 0 ELSE CAST(floor(log2(CAST(ns AS DOUBLE))) AS BIGINT) - 10 END AS bits
    FROM timed
),
placed AS (
    SELECT of_what, ns,
           ns - ns % CAST(power(2e0, CAST(bits AS DOUBLE)) AS BIGINT)
               + CASE WHEN bits = 0 THEN 0 ELSE CAST(power(2e0, CAST(bits - 1 AS DOUBLE)) AS BIGINT) - 1 END AS middle_ns
    FROM dropped
),
buckets AS (
    SELECT of_what, middle_ns, count(*) AS requests FROM placed GROUP BY of_what, middle_ns
),
ranked AS (
    SELECT of_what, middle_ns, sum(requests) OVER (PARTITION BY of_what ORDER BY middle_ns) AS up_to FROM buckets
),
whole AS (
    SELECT of_what,
           count(*) AS requests,
           CAST(sum(ns) AS DOUBLE) / CAST(count(*) AS DOUBLE) / 1e3 AS mean_us,
           min(ns) AS min_ns,
           max(ns) AS max_ns
    FROM timed GROUP BY of_what
),
percents AS (
    SELECT 5e0 AS percent UNION ALL SELECT 10e0 UNION ALL SELECT 25e0 UNION ALL SELECT 50e0 UNION ALL SELECT 75e0
    UNION ALL SELECT 90e0 UNION ALL SELECT 95e0 UNION ALL SELECT 99e0 UNION ALL SELECT 99.9e0 UNION ALL SELECT 99.99e0
),
found AS (
    SELECT whole.of_what, percents.percent, min(ranked.middle_ns) AS middle_ns
    FROM whole
    CROSS JOIN percents
    JOIN ranked ON ranked.of_what = whole.of_what
    WHERE CAST(ranked.up_to AS DOUBLE) >= ceil(percents.percent / 100e0 * CAST(whole.requests AS DOUBLE))
    GROUP BY whole.of_what, percents.percent
),
shown AS (
    SELECT found.of_what, found.percent,
           CASE WHEN found.percent > 99e0
                 AND known.untimed_share > 0.1e0 * (1e0 - found.percent / 100e0) THEN NULL
                ELSE CAST(greatest(whole.min_ns, least(whole.max_ns, found.middle_ns)) AS DOUBLE) / 1e3 END AS us
    FROM found
    JOIN whole ON whole.of_what = found.of_what
    CROSS JOIN known
)
SELECT whole.of_what,
       whole.requests,
       whole.mean_us,
       CAST(whole.min_ns AS DOUBLE) / 1e3 AS min_us,
       max(CASE WHEN percent = 5e0 THEN us END) AS p5_us,
       max(CASE WHEN percent = 10e0 THEN us END) AS p10_us,
       max(CASE WHEN percent = 25e0 THEN us END) AS p25_us,
       max(CASE WHEN percent = 50e0 THEN us END) AS p50_us,
       max(CASE WHEN percent = 75e0 THEN us END) AS p75_us,
       max(CASE WHEN percent = 90e0 THEN us END) AS p90_us,
       max(CASE WHEN percent = 95e0 THEN us END) AS p95_us,
       max(CASE WHEN percent = 99e0 THEN us END) AS p99_us,
       max(CASE WHEN percent = 99.9e0 THEN us END) AS p99_9_us,
       max(CASE WHEN percent = 99.99e0 THEN us END) AS p99_99_us,
       CASE WHEN max(known.untimed_share) > 0e0 THEN NULL ELSE CAST(whole.max_ns AS DOUBLE) / 1e3 END AS max_us
FROM whole
JOIN shown ON shown.of_what = whole.of_what
CROSS JOIN known
GROUP BY whole.of_what, whole.requests, whole.mean_us, whole.min_ns, whole.max_ns
ORDER BY whole.of_what
