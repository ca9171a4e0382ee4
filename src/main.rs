fn main() {
    let a: Vec<String> = std::env::args().collect();
    let f = std::fs::File::open(&a[1]).unwrap();
    let mut p = tachyon_jsonl::format::Profile::open(f).unwrap_or_else(|e| { eprintln!("{e}"); std::process::exit(1) });
    for f in &p.contents().faults { eprintln!("{}", f.error); }
    for f in &p.contents().warnings { eprintln!("{}", f); }
    let mut o = tachyon_jsonl::convert::StreamOptions::new("x").unwrap();
    if let Some(t) = a.get(2) { o = o.types(t.parse().unwrap()); }
    let out = std::io::stdout().lock();
    tachyon_jsonl::convert::to_stream(&mut p, &o, &mut std::io::BufWriter::new(out)).unwrap();
}
