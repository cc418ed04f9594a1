-- Complete responses by latency decile (fastest first) and size series, as in `headway analyze`, from the rows in a
-- view `requests`. Of responses in one bucket the smaller ones are first.
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
observed AS (
    SELECT size_bytes, requests,
           CAST(sum(requests) OVER (ORDER BY middle_ns, size_bytes) AS BIGINT) AS up_to,
           CAST(sum(requests) OVER () AS BIGINT) AS in_all
    FROM cells
),
numbers AS (
    SELECT 0 AS decile UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4
    UNION ALL SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9
),
cut AS (
    SELECT numbers.decile + 1 AS decile,
           size_bytes,
           greatest(up_to - requests,
                    CAST(floor(CAST(in_all * numbers.decile AS DOUBLE) / 10e0) AS BIGINT)) AS first_rank,
           least(up_to, CAST(floor(CAST(in_all * (numbers.decile + 1) AS DOUBLE) / 10e0) AS BIGINT)) AS end_rank
    FROM observed CROSS JOIN numbers
)
SELECT decile,
       CAST(sum(CASE WHEN size_bytes <= 512 THEN end_rank - first_rank ELSE 0 END) AS BIGINT) AS series_1,
       CAST(sum(CASE WHEN size_bytes > 512 AND size_bytes <= 4096 THEN end_rank - first_rank ELSE 0 END) AS BIGINT)
           AS series_2,
       CAST(sum(CASE WHEN size_bytes > 4096 AND size_bytes <= 6144 THEN end_rank - first_rank ELSE 0 END) AS BIGINT)
           AS series_3,
       CAST(sum(CASE WHEN size_bytes > 6144 THEN end_rank - first_rank ELSE 0 END) AS BIGINT) AS series_4
FROM cut
WHERE end_rank > first_rank
GROUP BY decile
ORDER BY decile
