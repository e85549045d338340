import { printable } from './printable.ts'

/** Maximum position of a page's title, in bytes. */
const MAX_HEAD = 8192
const MAX_TITLE_LENGTH = 80

export const isWebPage = (text: string) => /^\uFEFF?\s*(?:<!doctype html|<html|<head)\b/i.test(text)

/** ` (<word> "…")` with the title of a web page, short and without control characters; empty if it has none. */
export function pageTitle(text: string, word = 'title'): string {
  const title = /<title[^>]{0,200}>([^<]*)/i.exec(text.slice(0, MAX_HEAD))?.[1]?.replace(/\s+/g, ' ').trim()
  return title ? ` (${word} ${JSON.stringify(printable(title, MAX_TITLE_LENGTH))})` : ''
}
