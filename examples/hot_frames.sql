-- The hottest frames of a run, from its final agg table (all messages of it).
-- Variables: stream (path), top (rows, default 20).
WITH message AS (
    FROM read_json(getvariable('stream'), format = 'newline_delimited', columns = {
        type: 'VARCHAR', run_id: 'VARCHAR', batch: 'BIGINT', str_id: 'BIGINT[]', value: 'VARCHAR[]',
        frame_id: 'BIGINT[]', path_str_id: 'BIGINT[]', func_str_id: 'BIGINT[]', line: 'BIGINT[]', col: 'BIGINT[]',
        kind: 'VARCHAR', scope: 'VARCHAR', self: 'BIGINT[]', cumulative: 'BIGINT[]'})
), string AS ( -- ids mean something only within their run and batch
    SELECT row(run_id, batch, unnest(str_id)) AS id, unnest(value) AS value
    FROM message WHERE type = 'str_def'
), frame AS (
    SELECT row(run_id, batch, unnest(frame_id)) AS id, row(run_id, batch, unnest(path_str_id)) AS path_id,
        row(run_id, batch, unnest(func_str_id)) AS function_id, unnest(line) AS line, unnest(col) AS col
    FROM message WHERE type = 'frame_def'
), agg AS (
    SELECT run_id, batch, unnest(frame_id) AS frame_id, unnest(self) AS self, unnest(cumulative) AS cumulative
    FROM message WHERE type = 'agg' AND kind = 'frame' AND scope = 'final'
)
SELECT self, cumulative, path.value AS path, function.value AS function, line, col, run_id, frame_id
FROM agg
JOIN frame ON frame.id = row(run_id, batch, frame_id)
JOIN string AS path ON path.id = path_id
JOIN string AS function ON function.id = function_id
ORDER BY self DESC, cumulative DESC, run_id, frame_id
LIMIT coalesce(getvariable('top')::BIGINT, 20);
