//! `windlass config show`: what the server would use, and where each setting comes from.

use crate::args::{Format, ServerArgs};
use crate::exit::{Exit, Outcome};
use crate::output::Out;
use crate::settings::Settings;
use crate::shown::without_password;

pub(super) fn show(args: &ServerArgs) -> Outcome {
    let settings = Settings::read(args)?;
    let out = Out::new(Format::Text);
    let mut table = out.table(&["SETTING", "VALUE", "FROM"]);
    for setting in &settings.all {
        let value = match setting.name {
            "admin_key" if !setting.value.is_empty() => "(set)".to_owned(),
            "store" => without_password(&setting.value),
            _ => setting.value.clone(),
        };
        table.row([out.bold(setting.name), value, setting.origin.to_string()]);
    }
    table.print()?;
    Ok(Exit::Ok)
}
