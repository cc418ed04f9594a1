-- Latency of complete responses by size, as in `headway analyze`, from the rows in a view `requests`.
-- With more than 40 sizes they are grouped into ranges: 0, 1, 2-4, 5-9, 10-19, ...
WITH measured AS (
    SELECT size_bytes,
           error,
           CASE WHEN end_ns > intended_ns THEN end_ns - intended_ns ELSE 0 END AS ns,
           CASE WHEN error IN ('abandoned', 'no-connection', 'no-port', 'no-descriptor') THEN 1 ELSE 0 END AS untimed
    FROM requests
    WHERE NOT warmup
),
-- No row if there are too many requests without a latency, and then no figures.
known AS (
    SELECT CAST(sum(untimed) AS DOUBLE) / CAST(count(*) AS DOUBLE) AS untimed_share
    FROM measured
    HAVING sum(CASE WHEN error = 'no-connection' THEN 1 ELSE 0 END) = 0
       AND CAST(sum(untimed) AS DOUBLE) / CAST(count(*) AS DOUBLE) < 0.001e0
),
-- A bucket drops all but the first eleven bits. This is the number of bits that it drops.
dropped AS (
    SELECT size_bytes, ns,
           CASE WHEN ns < 2048 THEN 0 ELSE CAST(floor(log2(CAST(ns AS DOUBLE))) AS BIGINT) - 10 END AS bits
    FROM measured
    CROSS JOIN known
    WHERE error IS NULL
),
placed AS (
    SELECT size_bytes,
           ns - ns % CAST(power(2e0, CAST(bits AS DOUBLE)) AS BIGINT)
               + CASE WHEN bits = 0 THEN 0 ELSE CAST(power(2e0, CAST(bits - 1 AS DOUBLE)) AS BIGINT) - 1 END AS middle_ns
    FROM dropped
),
cells AS (
    SELECT size_bytes, middle_ns, count(*) AS requests FROM placed GROUP BY size_bytes, middle_ns
),
sizes AS (
    SELECT count(DISTINCT size_bytes) AS sizes FROM cells
),
keyed AS (
    SELECT size_bytes, middle_ns, requests,
           CASE WHEN sizes.sizes <= 40 THEN size_bytes
                WHEN size_bytes = 0 THEN 0
                ELSE 3 * length(CAST(size_bytes AS STRING)) - 2
                     + CASE WHEN substr(CAST(size_bytes AS STRING), 1, 1) >= '2' THEN 1 ELSE 0 END
                     + CASE WHEN substr(CAST(size_bytes AS STRING), 1, 1) >= '5' THEN 1 ELSE 0 END
           END AS size_group
    FROM cells CROSS JOIN sizes
),
buckets AS (
    SELECT size_group, middle_ns, sum(requests) AS requests FROM keyed GROUP BY size_group, middle_ns
),
ranked AS (
    SELECT size_group, middle_ns,
           CAST(sum(requests) OVER (PARTITION BY size_group ORDER BY middle_ns) AS DOUBLE) AS up_to,
           CAST(sum(requests) OVER (PARTITION BY size_group) AS DOUBLE) AS in_all
    FROM buckets
),
percentiles AS (
    SELECT size_group,
           CAST(min(CASE WHEN up_to >= ceil(50e0 / 100e0 * in_all) THEN middle_ns END) AS DOUBLE) / 1e3 AS p50_us,
           CAST(min(CASE WHEN up_to >= ceil(95e0 / 100e0 * in_all) THEN middle_ns END) AS DOUBLE) / 1e3 AS p95_us,
           CAST(min(CASE WHEN up_to >= ceil(99e0 / 100e0 * in_all) THEN middle_ns END) AS DOUBLE) / 1e3 AS p99_us
    FROM ranked GROUP BY size_group
)
SELECT min(keyed.size_bytes) AS low_bytes,
       max(keyed.size_bytes) AS high_bytes,
       CAST(sum(keyed.requests) AS BIGINT) AS requests,
       CAST(sum(keyed.requests * keyed.middle_ns) AS DOUBLE) / CAST(sum(keyed.requests) AS DOUBLE) / 1e3 AS mean_us,
       max(p50_us) AS p50_us,
       max(p95_us) AS p95_us,
       max(p99_us) AS p99_us
FROM keyed
JOIN percentiles ON percentiles.size_group = keyed.size_group
GROUP BY keyed.size_group
ORDER BY low_bytes
