//! The names that the library shows: a list, so that it grows on purpose only.
//!
//! Sources are parsed. What is re-exported or defined in a public module counts; what is hidden from the documentation
//! is for tests, benchmarks and fuzz targets, and the command is not part of the library.

use std::path::{Path, PathBuf};

use syn::{Attribute, Item, UseTree, Visibility};

const NAMES: &str = "
convert::Flush convert::Outcome convert::ProfileOptions convert::RunStream convert::StreamOptions
convert::StreamReader convert::StreamSummary convert::ToBinary convert::ToChunks convert::Upgrade
convert::to_stream error::Error error::ErrorKind error::Position error::Result format::Chunk
format::ChunkInfo format::Contents format::Fault format::FaultCode format::Framing format::LostPart
format::Outline format::Packing format::Part format::PartLocation format::Profile format::Recovered
format::RunEnd format::Samples format::Sequence format::Writer format::recover model::Capture
model::ClockPair model::Frame model::Location model::Mode model::PythonVersion model::RunFacts
model::StackSamples model::Statistics model::StringTable model::Tables model::ThreadKey model::TimeSpan
model::status::GIL_REQUESTED model::status::HAS_EXCEPTION model::status::HAS_GIL model::status::MAIN_THREAD
model::status::ON_CPU model::status::UNKNOWN protocol::Checker protocol::Decoded protocol::Encoder
protocol::Envelope protocol::Finding protocol::FromMsgpack protocol::Line protocol::Lines protocol::Message
protocol::MessageType protocol::Raw protocol::RawColumns protocol::RawThread protocol::StreamTypes
protocol::ThreadColumns protocol::ToMsgpack protocol::Tolerated protocol::decode protocol::message::Agg
protocol::message::Capture protocol::message::End protocol::message::ErrorMessage
protocol::message::FrameDef protocol::message::Heartbeat protocol::message::IdScope protocol::message::Loss
protocol::message::LossAmount protocol::message::LossReason protocol::message::Meta protocol::message::Stats
protocol::message::StrDef protocol::message::Timing protocol::message::VERSION
";

/// Whether an attribute list has `#[doc(hidden)]`, or leaves the item to the command.
fn is_hidden(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let Ok(list) = attribute.meta.require_list() else { return false };
        let text = list.tokens.to_string();
        list.path.is_ident("doc") && text == "hidden" || list.path.is_ident("cfg") && text.contains("cli")
    })
}

fn leaves(tree: &UseTree, names: &mut Vec<String>) {
    match tree {
        UseTree::Path(path) => leaves(&path.tree, names),
        UseTree::Name(name) => names.push(name.ident.to_string()),
        UseTree::Rename(name) => names.push(name.rename.to_string()),
        UseTree::Group(group) => group.items.iter().for_each(|tree| leaves(tree, names)),
        UseTree::Glob(_) => panic!("a glob in a public use hides what it names"),
    }
}

/// The file of a module that a file in `folder` declares.
fn file_of(folder: &Path, module: &str) -> PathBuf {
    let file = folder.join(format!("{module}.rs"));
    if file.exists() { file } else { folder.join(module).join("mod.rs") }
}

/// Adds what the public items of a module are called.
fn collect(items: &[Item], folder: &Path, module: &str, found: &mut Vec<String>) {
    for item in items {
        let (visibility, attributes, names) = match item {
            Item::Use(item) => {
                let mut names = Vec::new();
                leaves(&item.tree, &mut names);
                (&item.vis, &item.attrs, names)
            }
            Item::Struct(item) => (&item.vis, &item.attrs, vec![item.ident.to_string()]),
            Item::Enum(item) => (&item.vis, &item.attrs, vec![item.ident.to_string()]),
            Item::Fn(item) => (&item.vis, &item.attrs, vec![item.sig.ident.to_string()]),
            Item::Const(item) => (&item.vis, &item.attrs, vec![item.ident.to_string()]),
            Item::Type(item) => (&item.vis, &item.attrs, vec![item.ident.to_string()]),
            Item::Trait(item) => (&item.vis, &item.attrs, vec![item.ident.to_string()]),
            Item::Static(item) => (&item.vis, &item.attrs, vec![item.ident.to_string()]),
            Item::Mod(item) => (&item.vis, &item.attrs, Vec::new()),
            _ => continue,
        };
        if !matches!(visibility, Visibility::Public(_)) || is_hidden(attributes) {
            continue;
        }
        let within =
            |name: &str| if module.is_empty() { name.to_string() } else { format!("{module}::{name}") };
        found.extend(names.iter().map(|name| within(name)));
        let Item::Mod(item) = item else { continue };
        let name = item.ident.to_string();
        let inner = folder.join(&name);
        match &item.content {
            Some((_, items)) => collect(items, &inner, &within(&name), found),
            None => collect(&parsed(&file_of(folder, &name)), &inner, &within(&name), found),
        }
    }
}

fn parsed(file: &Path) -> Vec<Item> {
    let source = std::fs::read_to_string(file).expect("a module's file");
    syn::parse_file(&source).expect("Rust").items
}

#[test]
fn the_library_shows_these_names_and_no_others() {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    collect(&parsed(&sources.join("lib.rs")), &sources, "", &mut found);
    found.sort();
    let mut expected: Vec<&str> = NAMES.split_whitespace().collect();
    expected.sort_unstable();
    assert_eq!(found, expected, "{} names: {}", found.len(), found.join(" "));
}
