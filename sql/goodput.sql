-- Complete responses within deadlines from the intended start, as `headway analyze --deadline`, from the rows in a view
-- `requests`. Write your own deadlines in milliseconds. For a rate, divide by `duration_s` of the analysis.
WITH deadlines AS (
    SELECT 1e0 AS deadline_ms UNION ALL SELECT 10e0 UNION ALL SELECT 100e0
),
ended AS (
    SELECT error, CASE WHEN end_ns > intended_ns THEN end_ns - intended_ns ELSE 0 END AS response_ns
    FROM requests
    WHERE NOT warmup AND coalesce(error, 'ok') <> 'abandoned'
)
SELECT deadline_ms,
       sum(CASE WHEN error IS NULL AND response_ns <= CAST(floor(deadline_ms * 1e6) AS BIGINT) THEN 1 ELSE 0 END)
           AS requests,
       CAST(sum(CASE WHEN error IS NULL AND response_ns <= CAST(floor(deadline_ms * 1e6) AS BIGINT) THEN 1 ELSE 0 END)
           AS DOUBLE) / CAST(count(*) AS DOUBLE) AS share
FROM ended CROSS JOIN deadlines
GROUP BY deadline_ms
ORDER BY deadline_ms
