mod pin;
mod recorder;
mod status;
