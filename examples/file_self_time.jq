# Self time by file, of all threads between two times, from the raw messages.
# Times are microseconds since the run began: from <= time < to.
#   jq -nc --argjson from 1000000 --argjson to 2000000 -f file_self_time.jq stream.jsonl
# Without from or to: from the beginning, to the end.

def table($ids; $values): [range($ids | length) | {($ids[.] | tostring): $values[.]}] | add // {};

# For each raw message and each file in it: how many samples the file ran in.
def parts($from; $to):
  foreach inputs as $m ({};
    if $m.type == "meta" then
        .[$m.run_id] = {start: $m.run_start_usec, interval: $m.sample_interval_usec, strings: {}, paths: {}}
    elif $m.type == "str_def" then .[$m.run_id].strings += table($m.str_id; $m.value)
    elif $m.type == "frame_def" then
        .[$m.run_id].strings as $strings
        | .[$m.run_id].paths += table($m.frame_id; [$m.path_str_id[] | $strings[tostring]])
    else . end;
    select($m.type == "raw")
    | .[$m.run_id] as $run
    | [ $m.threads[] as $thread
        | foreach range($thread.ts_delta_usec | length) as $i (
            $m.start_usec - $run.start;
            . + $thread.ts_delta_usec[$i];
            select($from <= . and . < $to)
            | $thread.stack[$i] | values
            | $run.paths[$m.stack_frame_id[.] | tostring])
      ]
    | group_by(.)[]
    | {path: .[0], samples: length, self_usec: (length * $run.interval)});

reduce parts($ARGS.named.from // -infinite; $ARGS.named.to // infinite) as $part ({};
    .[$part.path].samples += $part.samples | .[$part.path].self_usec += $part.self_usec)
| [to_entries[] | {path: .key} + .value]
| sort_by(-.samples, .path)[]
