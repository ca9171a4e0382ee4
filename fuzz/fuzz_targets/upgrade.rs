#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| tachyon_jsonl_fuzz::invariants::upgrade(input));
