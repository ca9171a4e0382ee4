//! The structure of the sources: which layer may know which, and no circles between files.
//!
//! Sources are parsed, so comments and strings do not count, and every path counts wherever it stands: in a `use`, a
//! signature, an expression or a macro. A name that a `mod.rs` re-exports is followed to the file that defines it.
//! Test modules are free.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, Item, UseTree};

/// A layer, and the layers and crates that it may name. std is free to all.
const RULES: [(&str, &[&str]); 12] = [
    ("error", &["model"]),
    ("limits", &["model"]),
    ("worker", &[]),
    ("varint", &[]),
    ("marks", &[]),
    ("buffered", &[]),
    ("model", &[]),
    ("counts", &["model", "error", "limits", "varint", "worker", "tempfile", "rustc_hash"]),
    (
        "format",
        &[
            "buffered",
            "counts",
            "model",
            "error",
            "limits",
            "marks",
            "varint",
            "worker",
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
            "counts",
            "model",
            "error",
            "limits",
            "marks",
            "worker",
            "serde",
            "serde_json",
            "simd_json",
            "base64",
            "rustc_hash",
            "rmp",
            "rmpv",
            "sha2",
            "xxhash_rust",
            "memchr",
        ],
    ),
    (
        "convert",
        &[
            "format",
            "protocol",
            "counts",
            "model",
            "error",
            "limits",
            "worker",
            "base64",
            "rustc_hash",
            "tempfile",
        ],
    ),
    // The command may name everything.
    ("cli", &["*"]),
];

/// Folders of the command, and which others of its folders each may name.
const ROOMS: [(&str, &[&str]); 3] =
    [("io", &["net", "ui"]), ("net", &["io"]), ("output", &["args", "exit", "io", "net", "ui"])];

/// One source file.
struct Source {
    path: PathBuf,
    /// Its module, as `format::layout::header`.
    module: String,
    /// Paths that it names, from the crate's root or with a foreign crate first.
    names: BTreeSet<String>,
    /// Names that it brings in by `pub use`, and what they stand for.
    exports: BTreeMap<String, String>,
}

fn src() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            files(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "rs") && !path.ends_with("tests.rs") {
            found.push(path);
        }
    }
}

fn module_of(path: &Path) -> String {
    let inside = path.strip_prefix(src()).expect("below src").with_extension("");
    let parts: Vec<&str> = inside.iter().map(|part| part.to_str().expect("UTF-8")).collect();
    parts.join("::").trim_end_matches("::mod").to_string()
}

impl Source {
    fn read(path: PathBuf) -> Self {
        let text = std::fs::read_to_string(&path).expect("readable");
        let file = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let module = module_of(&path);
        let mut source = Source { path, module, names: BTreeSet::new(), exports: BTreeMap::new() };
        source.visit_file(&file);
        source
    }

    /// Whether `use` paths that begin like this leave the file: `std` and names of the file itself do not count.
    fn note(&mut self, segments: &[String]) {
        let mut segments = segments;
        let mut base: Vec<String> = Vec::new();
        match segments.first().map(String::as_str) {
            Some("crate") => segments = &segments[1..],
            Some("super") => {
                base = self.module.split("::").map(str::to_string).collect();
                while segments.first().is_some_and(|first| first == "super") {
                    base.pop();
                    segments = &segments[1..];
                }
            }
            _ => return,
        }
        base.extend_from_slice(segments);
        if !base.is_empty() {
            self.names.insert(base.join("::"));
        }
    }

    fn note_use(&mut self, tree: &UseTree, mut before: Vec<String>, is_public: bool) {
        match tree {
            UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.note_use(&path.tree, before, is_public);
            }
            UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.note_use(tree, before.clone(), is_public));
            }
            UseTree::Name(name) => {
                self.note_leaf(before, name.ident.to_string(), name.ident.to_string(), is_public)
            }
            UseTree::Rename(name) => {
                self.note_leaf(before, name.ident.to_string(), name.rename.to_string(), is_public);
            }
            UseTree::Glob(_) => self.note_root(&before),
        }
    }

    fn note_leaf(&mut self, mut path: Vec<String>, name: String, known_as: String, is_public: bool) {
        if name != "self" {
            path.push(name);
        }
        if is_public {
            let absolute = match path.first().map(String::as_str) {
                Some("crate") => path[1..].join("::"),
                Some("self") => format!("{}::{}", self.module, path[1..].join("::")),
                _ => format!("{}::{}", self.module, path.join("::")),
            };
            self.exports.insert(known_as, absolute);
        } else {
            self.note_root(&path);
        }
    }

    /// A `use` from the crate's root or from another crate.
    fn note_root(&mut self, path: &[String]) {
        match path.first().map(String::as_str) {
            Some("crate" | "super") => self.note(path),
            Some("std" | "core" | "alloc" | "self") | None => {}
            Some(first) => {
                self.names.insert(format!("::{first}"));
            }
        }
    }

    fn note_tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut colons = 0;
        for token in tokens {
            match &token {
                TokenTree::Ident(ident) if path.is_empty() || colons == 2 => path.push(ident.to_string()),
                TokenTree::Punct(punct) if punct.as_char() == ':' && !path.is_empty() && colons < 2 => {
                    colons += 1;
                    continue;
                }
                TokenTree::Group(group) => {
                    self.note(&std::mem::take(&mut path));
                    self.note_tokens(group.stream());
                }
                TokenTree::Ident(ident) => {
                    self.note(&std::mem::take(&mut path));
                    path.push(ident.to_string());
                }
                _ => self.note(&std::mem::take(&mut path)),
            }
            colons = 0;
        }
        self.note(&path);
    }
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let is_cfg = attribute.path().is_ident("cfg");
        is_cfg && matches!(&attribute.meta, syn::Meta::List(list) if is_of_tests(&list.tokens.to_string()))
    })
}

/// Whether a `cfg` holds for tests alone: `test`, or `all(test, ...)`.
fn is_of_tests(condition: &str) -> bool {
    condition == "test" || condition.replace(' ', "").starts_with("all(test,")
}

impl<'ast> Visit<'ast> for Source {
    fn visit_item(&mut self, item: &'ast Item) {
        match item {
            Item::Mod(module) if is_test(&module.attrs) => {}
            Item::Use(item) => {
                let is_public = !matches!(item.vis, syn::Visibility::Inherited);
                self.note_use(&item.tree, Vec::new(), is_public);
            }
            item => visit::visit_item(self, item),
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if segments.len() > 1 {
            self.note(&segments);
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.note_tokens(call.tokens.clone());
        visit::visit_macro(self, call);
    }
}

struct House {
    sources: Vec<Source>,
    by_module: BTreeMap<String, usize>,
}

impl House {
    fn read() -> Self {
        let mut paths = Vec::new();
        files(&src(), &mut paths);
        paths.sort();
        let sources: Vec<Source> = paths.into_iter().map(Source::read).collect();
        let by_module = sources.iter().enumerate().map(|(at, source)| (source.module.clone(), at)).collect();
        House { sources, by_module }
    }

    /// The file that defines what a path names: re-exports are followed.
    fn file_of(&self, path: &str) -> Option<usize> {
        let mut path = path.to_string();
        for _ in 0..8 {
            let parts: Vec<&str> = path.split("::").collect();
            let longest = (1..=parts.len())
                .rev()
                .find_map(|length| self.by_module.get(&parts[..length].join("::")).map(|at| (*at, length)));
            let (at, length) = longest?;
            let export = parts.get(length).and_then(|name| self.sources[at].exports.get(*name));
            match export {
                Some(export) => path = export.clone(),
                None => return Some(at),
            }
        }
        None
    }

    /// Which files a file names.
    fn arrows(&self, at: usize) -> BTreeSet<usize> {
        let names = self.sources[at].names.iter().filter(|name| !name.starts_with("::"));
        names.filter_map(|name| self.file_of(name)).filter(|to| *to != at).collect()
    }
}

fn layer_of(module: &str) -> &str {
    module.split("::").next().expect("a first part")
}

#[test]
fn each_layer_names_only_what_it_may() {
    let house = House::read();
    let mut checked = 0;
    for source in &house.sources {
        let layer = layer_of(&source.module);
        if matches!(layer, "lib" | "main") {
            continue;
        }
        let (_, allowed) =
            RULES.iter().find(|(name, _)| *name == layer).unwrap_or_else(|| panic!("no rule for {layer}"));
        let paths = source.names.iter().chain(source.exports.values());
        for name in paths {
            let root = name.trim_start_matches("::").split("::").next().expect("a first part");
            let is_ours = house.sources.iter().any(|other| layer_of(&other.module) == root);
            let is_local = !name.starts_with("::") && !is_ours;
            let is_allowed = root == layer || allowed.contains(&root) || allowed.contains(&"*") || is_local;
            // An enum of the file itself, brought into scope.
            let is_item = name.starts_with("::") && root.chars().next().is_some_and(char::is_uppercase);
            let is_module = house.by_module.contains_key(&format!("{}::{root}", source.module));
            assert!(is_allowed || is_item || is_module, "{} names {name}", source.path.display());
        }
        checked += 1;
    }
    assert!(checked > 60, "{checked} files");
}

#[test]
fn only_main_names_the_command() {
    for source in House::read().sources {
        let inside = layer_of(&source.module);
        if inside != "cli" && inside != "main" {
            let names = source
                .names
                .iter()
                .any(|name| name == "cli" || name.starts_with("cli::") || name == "::clap");
            assert!(!names, "{}", source.path.display());
        }
    }
}

#[test]
fn no_file_depends_on_itself_through_others() {
    let house = House::read();
    let arrows: Vec<BTreeSet<usize>> = (0..house.sources.len()).map(|at| house.arrows(at)).collect();
    // What reaches a file that reaches it back.
    let reach = |from: usize| {
        let mut seen = BTreeSet::new();
        let mut todo: Vec<usize> = arrows[from].iter().copied().collect();
        while let Some(at) = todo.pop() {
            if seen.insert(at) {
                todo.extend(arrows[at].iter().copied());
            }
        }
        seen
    };
    let all: Vec<BTreeSet<usize>> = (0..arrows.len()).map(reach).collect();
    let mut circles = BTreeSet::new();
    for (at, reached) in all.iter().enumerate() {
        let circle: Vec<&str> = reached
            .iter()
            .filter(|to| **to != at && all[**to].contains(&at))
            .chain(reached.contains(&at).then_some(&at))
            .map(|at| house.sources[*at].module.as_str())
            .collect();
        if circle.len() > 1 {
            let mut circle = circle;
            circle.sort_unstable();
            circles.insert(circle.join(", "));
        }
    }
    assert!(
        circles.is_empty(),
        "files that depend on each other:\n{}",
        circles.into_iter().collect::<Vec<_>>().join("\n")
    );
}

#[test]
fn the_command_keeps_its_rooms_apart() {
    let house = House::read();
    for source in &house.sources {
        let mut parts = source.module.split("::");
        let (Some("cli"), Some(room)) = (parts.next(), parts.next()) else { continue };
        let Some((_, allowed)) = ROOMS.iter().find(|(name, _)| *name == room) else { continue };
        for name in &source.names {
            if let Some(rest) = name.strip_prefix("cli::") {
                let other = rest.split("::").next().expect("a first part");
                let is_room = house.by_module.contains_key(&format!("cli::{other}"));
                assert!(
                    !is_room || other == room || allowed.contains(&other),
                    "{} names {name}",
                    source.path.display()
                );
            }
        }
    }
}
