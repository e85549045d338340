import { readFile } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { REQUIREMENTS } from '../plugins/models/conversion/python-environment.ts'

/** Parses a requirements file into its packages and the files that it includes. */
export function parseRequirements(text: string): { packages: string[]; includes: string[] } {
  const lines = text
    .replace(/\\\r?\n/g, ' ')
    .split(/\r?\n/)
    .map(line => line.replace(/(^|\s)#.*$/, '').trim())
  return {
    // Options like index addresses are left out: corral's settings decide them.
    packages: lines.filter(line => line !== '' && !line.startsWith('-')),
    includes: lines.flatMap(line => /^(?:-r|--requirement)[\s=]*(.+)$/.exec(line)?.[1] ?? [])
  }
}

/** Returns the packages that a converter needs, as pip requirements, for example `numpy~=2.2.6`. */
export async function readRequirements(converter: string): Promise<string[]> {
  const read = async (path: string, readers: string[] = []): Promise<string[]> => {
    if (readers.includes(path)) return []
    const { packages, includes } = parseRequirements(await readFile(path, 'utf8'))
    const included = await Promise.all(includes.map(name => read(join(dirname(path), name), [...readers, path])))
    return [...included.flat(), ...packages]
  }
  return [...new Set(await read(join(converter, REQUIREMENTS)))]
}
