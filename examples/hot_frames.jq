# The hottest frames of a run, from its final agg table (all messages of it).
#   jq -nc -f hot_frames.jq stream.jsonl
#   jq -nc --argjson top 50 -f hot_frames.jq stream.jsonl

def table($ids; $values): [range($ids | length) | {($ids[.] | tostring): $values[.]}] | add // {};

[foreach inputs as $m ({};
    if $m.type == "meta" then .[$m.run_id] = {strings: {}, frames: {}}
    elif $m.type == "str_def" then .[$m.run_id].strings += table($m.str_id; $m.value)
    elif $m.type == "frame_def" then
        .[$m.run_id].strings as $strings
        | .[$m.run_id].frames += table($m.frame_id; [range($m.frame_id | length) | {
            path: $strings[$m.path_str_id[.] | tostring],
            function: $strings[$m.func_str_id[.] | tostring],
            line: $m.line[.], col: $m.col[.]}])
    else . end;
    select($m.type == "agg" and $m.kind == "frame" and $m.scope == "final")
    | .[$m.run_id].frames as $frames
    | range($m.frame_id | length)
    | {self: $m.self[.], cumulative: $m.cumulative[.]}
      + $frames[$m.frame_id[.] | tostring]
      + {run_id: $m.run_id, frame_id: $m.frame_id[.]})]
| sort_by(-.self, -.cumulative, .run_id, .frame_id)
| .[:$ARGS.named.top // 20][]
