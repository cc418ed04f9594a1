-- Service inversion of complete responses, as in `headway analyze`, from the rows in a view `requests`: how far the
-- order of latencies is from the order of sizes. 0 is ordered by size. For up to 3,000,000,000 responses.
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
positions AS (
    SELECT size_bytes, requests,
           CAST(sum(requests) OVER (ORDER BY size_bytes, middle_ns) AS BIGINT) AS ideal,
           CAST(sum(requests) OVER (ORDER BY middle_ns, size_bytes) AS BIGINT) AS observed
    FROM cells
),
displaced AS (
    SELECT sum(requests * abs(observed - ideal)) AS by_latency, CAST(sum(requests) AS BIGINT) AS requests
    FROM positions
),
of_sizes AS (
    SELECT size_bytes, CAST(sum(requests) AS BIGINT) AS requests FROM cells GROUP BY size_bytes
),
from_the_end AS (
    SELECT requests,
           CAST(sum(requests) OVER (ORDER BY size_bytes) AS BIGINT) - requests AS smaller,
           CAST(sum(requests) OVER () AS BIGINT) - CAST(sum(requests) OVER (ORDER BY size_bytes) AS BIGINT) AS larger
    FROM of_sizes
),
backwards AS (
    SELECT sum(requests * abs(larger - smaller)) AS displacement, count(*) AS sizes FROM from_the_end
),
shares AS (
    SELECT CAST(by_latency AS DOUBLE)
               / (CAST(requests * requests - requests * requests % 2 AS DOUBLE) / 2e0) AS inversion,
           CAST(displacement AS DOUBLE)
               / (CAST(requests * requests - requests * requests % 2 AS DOUBLE) / 2e0) AS reversed,
           requests,
           sizes
    FROM displaced CROSS JOIN backwards
    WHERE requests > 1
)
SELECT inversion,
       reversed,
       CASE WHEN sizes > 1 THEN inversion / reversed END AS of_reversed,
       requests,
       sizes
FROM shares
