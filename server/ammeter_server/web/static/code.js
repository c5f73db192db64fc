// Sets code in a sentence apart: what backticks enclose, calls, names with dots or underscores, options, paths and lines of files.

import { make } from "./dom.js";

const ENCLOSED = "`[^`]+`";
const CALL = String.raw`[A-Za-z_][\w.]*\((?:[^()]|\([^()]*\))*\)(?:\.\w+(?:\([^()]*\))?)*`;
const INDEXED = String.raw`[A-Za-z_][\w.]*\[[^\]\s]+\]`;
const LINE = String.raw`[\w@./+-]*\w\.py(?::\d+)?`;
const PATH = String.raw`(?<![\w.])~?/[\w@.+-]+(?:/[\w@.+-]*\w)+`;
const DOTTED = String.raw`[A-Za-z_]\w*(?:\.(?:\w{2,}|\d+))+`;
const SETTING = String.raw`[A-Za-z_]\w*=(?:'[^']*'|"[^"]*"|[\w.*+-]*[\w*])`;
const NAME = String.raw`[A-Za-z]*_\w+|\w+_(?!\w)`;
const OPTION = String.raw`(?<![\w-])--[a-z][\w-]*`;
const CODE = new RegExp([ENCLOSED, CALL, INDEXED, LINE, PATH, SETTING, DOTTED, NAME, OPTION].join("|"), "g");

const LONG = 24; // characters from which code wraps behind its dots, slashes and brackets

// The text in parts, with code in elements of its own.
export function withCode(sentences) {
  const text = String(sentences ?? "");
  const parts = [];
  let at = 0;
  for (const { 0: found, index } of text.matchAll(CODE)) {
    const code = found.replaceAll("`", "");
    const pieces = code.length > LONG ? code.split(/(?<=[./_,(=[])(?=\w)/) : [code];
    parts.push(text.slice(at, index), make("code", {}, pieces.flatMap((piece, number) => (number ? [make("wbr"), piece] : [piece]))));
    at = index + found.length;
  }
  return [...parts, text.slice(at)].filter((part) => part !== "");
}
