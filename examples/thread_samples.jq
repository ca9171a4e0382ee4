# The samples of one thread between two times, from the raw messages.
# Times are microseconds since the run began: from <= time < to.
#   jq -nc --arg thread 4242 --argjson from 1000000 --argjson to 2000000 -f thread_samples.jq stream.jsonl
# Without from or to: from the beginning, to the end. A thread id is a string.

def table($ids; $values): [range($ids | length) | {($ids[.] | tostring): $values[.]}] | add // {};
def without($bad; $good): split($bad) | join($good);

($ARGS.named.from // -infinite) as $from
| ($ARGS.named.to // infinite) as $to
| foreach inputs as $m ({};
    if $m.type == "meta" then .[$m.run_id] = {start: $m.run_start_usec, strings: {}, labels: {}}
    elif $m.type == "str_def" then .[$m.run_id].strings += table($m.str_id; $m.value)
    elif $m.type == "frame_def" then
        .[$m.run_id].strings as $strings
        | .[$m.run_id].labels += table($m.frame_id; [range($m.frame_id | length)
            | "\($strings[$m.func_str_id[.] | tostring]) (\($strings[$m.path_str_id[.] | tostring]))"
            | without(";"; ",") | without("\n"; " ") | without("\r"; " ")])
    else . end;
    select($m.type == "raw")
    | .[$m.run_id] as $run
    | $m.threads[]
    | select(.thread_id == $thread) as $t
    | foreach range($t.ts_delta_usec | length) as $i (
        $m.start_usec - $run.start;
        . + $t.ts_delta_usec[$i];
        select($from <= . and . < $to)
        | {run_id: $m.run_id, interpreter_id: $t.interpreter_id, usec: ., status: $t.status[$i],
           stack: ([$t.stack[$i] | values | recurse($m.stack_parent[.]; . != null)
                    | $run.labels[$m.stack_frame_id[.] | tostring]] | reverse | join(";"))}))
