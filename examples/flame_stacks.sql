-- Stacks for a flame graph ("root;caller;leaf count"), from the raw messages.
-- A frame is "function (path)"; ";" and line breaks in names are replaced.
-- Variables: stream (path).
WITH RECURSIVE message AS (
    FROM read_json(getvariable('stream'), format = 'newline_delimited', columns = {
        type: 'VARCHAR', run_id: 'VARCHAR', seq: 'BIGINT', batch: 'BIGINT', str_id: 'BIGINT[]', value: 'VARCHAR[]',
        frame_id: 'BIGINT[]', path_str_id: 'BIGINT[]', func_str_id: 'BIGINT[]',
        stack_frame_id: 'BIGINT[]', stack_parent: 'BIGINT[]', threads: 'STRUCT(stack BIGINT[])[]'})
), string AS ( -- ids mean something only within their run and batch
    SELECT row(run_id, batch, unnest(str_id)) AS id,
        unnest(value).replace(';', ',').replace(chr(10), ' ').replace(chr(13), ' ') AS value
    FROM message WHERE type = 'str_def'
), frame AS (
    SELECT row(run_id, batch, unnest(frame_id)) AS id, row(run_id, batch, unnest(path_str_id)) AS path_id,
        row(run_id, batch, unnest(func_str_id)) AS function_id
    FROM message WHERE type = 'frame_def'
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
    SELECT run_id, seq, unnest(threads) AS thread FROM message WHERE type = 'raw'
), sample AS (
    SELECT row(run_id, seq, unnest(thread.stack)) AS stack_id FROM thread
), hits AS (
    SELECT stack_id, count(*) AS samples FROM sample GROUP BY stack_id
)
SELECT text || ' ' || sum(samples) AS line
FROM hits JOIN stack ON stack.id = stack_id
GROUP BY text
ORDER BY text;
