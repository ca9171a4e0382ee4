-- Self time by file, of all threads between two times, from the raw messages.
-- Times are microseconds since the run began: from_usec <= time < to_usec.
-- Variables: stream (path), from_usec, to_usec (default: from the beginning, to the end).
WITH message AS (
    FROM read_json(getvariable('stream'), format = 'newline_delimited', columns = {
        type: 'VARCHAR', run_id: 'VARCHAR', seq: 'BIGINT', batch: 'BIGINT',
        run_start_usec: 'HUGEINT', sample_interval_usec: 'HUGEINT',
        str_id: 'BIGINT[]', value: 'VARCHAR[]', frame_id: 'BIGINT[]', path_str_id: 'BIGINT[]',
        start_usec: 'HUGEINT', stack_frame_id: 'BIGINT[]',
        threads: 'STRUCT(ts_delta_usec HUGEINT[], stack BIGINT[])[]'})
), string AS ( -- ids mean something only within their run and batch
    SELECT row(run_id, batch, unnest(str_id)) AS id, unnest(value) AS value
    FROM message WHERE type = 'str_def'
), frame AS (
    SELECT row(run_id, batch, unnest(frame_id)) AS id, row(run_id, batch, unnest(path_str_id)) AS path_id
    FROM message WHERE type = 'frame_def'
), meta AS (
    SELECT row(run_id, batch) AS id, run_start_usec, sample_interval_usec
    FROM message WHERE type = 'meta'
), thread AS (
    SELECT run_id, batch, seq, start_usec, stack_frame_id,
        unnest(threads) AS thread, generate_subscripts(threads, 1) AS thread_number
    FROM message WHERE type = 'raw'
), entry AS (
    SELECT run_id, batch, seq, start_usec, stack_frame_id, thread_number,
        unnest(thread.ts_delta_usec) AS delta, unnest(thread.stack) AS node,
        generate_subscripts(thread.ts_delta_usec, 1) AS number
    FROM thread
), sample AS (
    SELECT row(run_id, batch) AS meta_id, row(run_id, batch, stack_frame_id[node + 1]) AS frame_id,
        start_usec + sum(delta) OVER (PARTITION BY run_id, seq, thread_number ORDER BY number) AS time_usec
    FROM entry
)
SELECT path.value AS path, count(*) AS samples, sum(sample_interval_usec) AS self_usec
FROM sample
JOIN meta ON meta.id = meta_id
JOIN frame ON frame.id = frame_id
JOIN string AS path ON path.id = path_id
WHERE (getvariable('from_usec') IS NULL OR time_usec - run_start_usec >= getvariable('from_usec'))
    AND (getvariable('to_usec') IS NULL OR time_usec - run_start_usec < getvariable('to_usec'))
GROUP BY path.value
ORDER BY samples DESC, path.value;
