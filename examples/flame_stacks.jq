# Stacks for a flame graph ("root;caller;leaf count"), from the raw messages.
#   jq -nr -f flame_stacks.jq stream.jsonl | flamegraph.pl > flame.svg
# A frame is "function (path)"; ";" and line breaks in names are replaced.

def table($ids; $values): [range($ids | length) | {($ids[.] | tostring): $values[.]}] | add // {};
def without($bad; $good): split($bad) | join($good);

# For each raw message and each stack in it: how many samples have it.
def parts:
  foreach inputs as $m ({};
    if $m.type == "meta" then .[$m.run_id] = {strings: {}, labels: {}}
    elif $m.type == "str_def" then .[$m.run_id].strings += table($m.str_id; $m.value)
    elif $m.type == "frame_def" then
        .[$m.run_id].strings as $strings
        | .[$m.run_id].labels += table($m.frame_id; [range($m.frame_id | length)
            | "\($strings[$m.func_str_id[.] | tostring]) (\($strings[$m.path_str_id[.] | tostring]))"
            | without(";"; ",") | without("\n"; " ") | without("\r"; " ")])
    else . end;
    select($m.type == "raw")
    | .[$m.run_id].labels as $labels
    | [$m.threads[].stack[]? | values]
    | group_by(.)[]
    | {samples: length,
       stack: ([.[0] | recurse($m.stack_parent[.]; . != null)
                | $labels[$m.stack_frame_id[.] | tostring]] | reverse | join(";"))});

reduce parts as $part ({}; .[$part.stack] += $part.samples)
| to_entries | sort_by(.key)[]
| "\(.key) \(.value)"
