//! `windlass config show`: the effective settings and their origins.

use serde_json::{Value, json};

use crate::args::ShowArgs;
use crate::exit::{Exit, Outcome};
use crate::output::Out;
use crate::settings::{Setting, Settings};

pub(super) fn show(args: &ShowArgs) -> Outcome {
    let settings = Settings::read(&args.server)?;
    let out = Out::new(args.output.output);
    if !out.is_text() {
        let row = |setting: &Setting| {
            let (value, from) = (setting.display(), setting.origin.to_string());
            json!({ "name": setting.name, "value": value, "from": from })
        };
        let rows: Vec<Value> = settings.all.iter().map(row).collect();
        out.list(&json!({ "settings": rows }), "settings")?;
        return Ok(Exit::Ok);
    }
    let mut table = out.table(&["SETTING", "VALUE", "FROM"]);
    for setting in &settings.all {
        table.row([out.bold(setting.name), setting.display(), setting.origin.to_string()]);
    }
    table.print()?;
    Ok(Exit::Ok)
}
