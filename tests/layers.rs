//! The layers know only what is below them: a rule without a test decays.

use std::path::{Path, PathBuf};

/// Layer, and the layers and crates that it may name. std is free to all.
const RULES: [(&str, &[&str]); 8] = [
    ("model", &["model"]),
    ("error", &["model", "error"]),
    ("limits", &["model", "limits"]),
    ("threads", &[]),
    (
        "format",
        &[
            "format",
            "model",
            "error",
            "limits",
            "threads",
            "zstd",
            "xxhash_rust",
            "rustc_hash",
            "tempfile",
            "memchr",
        ],
    ),
    (
        "protocol",
        &[
            "protocol",
            "model",
            "error",
            "limits",
            "serde",
            "serde_json",
            "simd_json",
            "base64",
            "rustc_hash",
            "rmpv",
            "sha2",
            "xxhash_rust",
            "memchr",
        ],
    ),
    (
        "stream",
        &[
            "stream",
            "error",
            "limits",
            "zstd",
            "flate2",
            "memchr",
            "tempfile",
            "rustix",
            "subtle",
            "tungstenite",
            "percent_encoding",
        ],
    ),
    (
        "convert",
        &[
            "convert",
            "format",
            "protocol",
            "model",
            "error",
            "limits",
            "threads",
            "base64",
            "rustc_hash",
            "tempfile",
        ],
    ),
];

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            found.push(path);
        }
    }
}

/// Every crate or layer that a source names in a path.
fn named(text: &str) -> Vec<String> {
    let code =
        text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n");
    let code = code.split("#[cfg(test)]").next().expect("a first part");
    let mut names = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        let rest = &code[at + "crate::".len()..];
        names.push(rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect());
    }
    for line in code.lines().map(str::trim_start) {
        if let Some(rest) = line.strip_prefix("use ") {
            let root: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            if !matches!(root.as_str(), "std" | "crate" | "super" | "self") && !root.is_empty() {
                names.push(root);
            }
        }
    }
    names
}

#[test]
fn each_layer_names_only_what_it_may() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut checked = 0;
    for (layer, allowed) in RULES {
        let mut found = vec![src.join(format!("{layer}.rs"))];
        found.retain(|path| path.exists());
        if src.join(layer).is_dir() {
            sources(&src.join(layer), &mut found);
        }
        // Tests in files of their own are held to nothing, like those at the end of a file.
        found.retain(|path| !path.ends_with("tests.rs"));
        assert!(!found.is_empty(), "{layer}");
        for path in found {
            let text = std::fs::read_to_string(&path).expect("readable");
            // What an enum or a local module brings into scope is of the layer itself.
            let locals =
                |name: &str| text.contains(&format!("enum {name}")) || text.contains(&format!("mod {name}"));
            for name in named(&text) {
                assert!(allowed.contains(&name.as_str()) || locals(&name), "{} names {name}", path.display());
            }
            checked += 1;
        }
    }
    assert!(checked > 20);
}

#[test]
fn only_main_names_the_command() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut all = Vec::new();
    sources(&src, &mut all);
    for path in all {
        let inside = path.strip_prefix(&src).expect("below src");
        let text = std::fs::read_to_string(&path).expect("readable");
        if !inside.starts_with("cli") && inside != Path::new("main.rs") {
            assert!(!named(&text).contains(&"cli".to_string()), "{}", path.display());
            assert!(!text.contains("clap"), "{}", path.display());
        }
    }
}
