import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { packageRoot } from '../core/system/package-info.ts'

/** Returns a text of the folder `texts`, which is beside this module in a bundle. */
export function shippedText(name: string): string {
  const bundled = new URL(`./texts/${name}`, import.meta.url)
  return readFileSync(existsSync(bundled) ? bundled : join(packageRoot, 'command-line', 'texts', name), 'utf8')
}

/** Replaces `{name}` in each line of a text. A line with a list is repeated for each value, or left out if it is empty. */
export function fillTemplate(file: string, values: Record<string, string | string[]>): string {
  const fill = (line: string): string[] => {
    const [, before, name = '', rest] = /^(.*?)\{(\w+)\}(.*)$/.exec(line) ?? []
    if (!Object.hasOwn(values, name)) return [line]
    return [values[name]!].flat().flatMap(value => fill(rest!).map(after => before + value + after))
  }
  return shippedText(file).split('\n').flatMap(fill).join('\n')
}
