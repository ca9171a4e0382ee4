-- The samples of one thread between two times, from the raw messages.
-- Times are microseconds since the run began: from_usec <= time < to_usec.
-- Variables: stream (path), thread (its id, a string), from_usec, to_usec
-- (default: from the beginning, to the end).
WITH RECURSIVE message AS (
    FROM read_json(getvariable('stream'), format = 'newline_delimited', columns = {
        type: 'VARCHAR', run_id: 'VARCHAR', seq: 'BIGINT', batch: 'BIGINT', run_start_usec: 'HUGEINT',
        str_id: 'BIGINT[]', value: 'VARCHAR[]',
        frame_id: 'BIGINT[]', path_str_id: 'BIGINT[]', func_str_id: 'BIGINT[]',
        start_usec: 'HUGEINT', stack_frame_id: 'BIGINT[]', stack_parent: 'BIGINT[]',
        threads: 'STRUCT(thread_id VARCHAR, interpreter_id BIGINT, ts_delta_usec HUGEINT[], status INTEGER[], stack BIGINT[])[]'})
), string AS ( -- ids mean something only within their run and batch
    SELECT row(run_id, batch, unnest(str_id)) AS id,
        unnest(value).replace(';', ',').replace(chr(10), ' ').replace(chr(13), ' ') AS value
    FROM message WHERE type = 'str_def'
), frame AS (
    SELECT row(run_id, batch, unnest(frame_id)) AS id, row(run_id, batch, unnest(path_str_id)) AS path_id,
        row(run_id, batch, unnest(func_str_id)) AS function_id
    FROM message WHERE type = 'frame_def'
), meta AS (
    SELECT row(run_id, batch) AS id, run_start_usec FROM message WHERE type = 'meta'
), node AS (
    SELECT run_id, batch, seq, generate_subscripts(stack_frame_id, 1) - 1 AS node,
        unnest(stack_frame_id) AS frame_id, unnest(stack_parent) AS parent
    FROM message WHERE type = 'raw'
), call AS MATERIALIZED (
    SELECT row(run_id, seq, node) AS id, if(parent IS NULL, NULL, row(run_id, seq, parent)) AS caller,
        function.value || ' (' || path.value || ')' AS label
    FROM node
    JOIN frame ON frame.id = row(run_id, batch, frame_id)
    JOIN string AS path ON path.id = path_id
    JOIN string AS function ON function.id = function_id
), stack AS ( -- the text of every node of the call trees, from the roots on
    SELECT id, label AS text FROM call WHERE caller IS NULL
    UNION ALL
    SELECT call.id, stack.text || ';' || call.label FROM stack JOIN call ON call.caller = stack.id
), thread AS (
    SELECT run_id, batch, seq, start_usec,
        unnest(threads) AS thread, generate_subscripts(threads, 1) AS thread_number
    FROM message WHERE type = 'raw'
), entry AS (
    SELECT run_id, batch, seq, start_usec, thread.interpreter_id AS interpreter_id, thread_number,
        unnest(thread.ts_delta_usec) AS delta, unnest(thread.status) AS status, unnest(thread.stack) AS node,
        generate_subscripts(thread.ts_delta_usec, 1) AS number
    FROM thread WHERE thread.thread_id = getvariable('thread')::VARCHAR
), sample AS (
    SELECT *, start_usec + sum(delta) OVER (PARTITION BY run_id, seq, thread_number ORDER BY number) AS time_usec
    FROM entry
)
SELECT run_id, interpreter_id, time_usec - run_start_usec AS usec, status, coalesce(text, '') AS stack
FROM sample
JOIN meta ON meta.id = row(run_id, batch)
LEFT JOIN stack ON stack.id = row(run_id, seq, node)
WHERE (getvariable('from_usec') IS NULL OR time_usec - run_start_usec >= getvariable('from_usec'))
    AND (getvariable('to_usec') IS NULL OR time_usec - run_start_usec < getvariable('to_usec'))
ORDER BY run_id, seq, thread_number, number;
