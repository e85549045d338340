import { createHash } from 'node:crypto'
import { readFile } from 'node:fs/promises'
import { dirname, join } from 'node:path'

/** In the converter's folder: the packages that it needs, with the versions that this llama.cpp was tried with. */
const FILE = join('requirements', 'requirements-convert_hf_to_gguf.txt')

/** What a requirements file asks for. Options such as index addresses are left out: corral's settings decide those. */
export function parseRequirements(text: string): { packages: string[]; includes: string[] } {
  const packages: string[] = []
  const includes: string[] = []
  for (const raw of text.replace(/\\\r?\n/g, ' ').split(/\r?\n/)) {
    const line = raw.replace(/(^|\s)#.*$/, '').trim()
    const include = /^(?:-r|--requirement)[\s=]*(.+)$/.exec(line)
    if (include) includes.push(include[1]!)
    else if (line !== '' && !line.startsWith('-')) packages.push(line)
  }
  return { packages, includes }
}

/** The packages that a converter needs, as pip takes them, such as `numpy~=2.2.6`. */
export async function readRequirements(converter: string): Promise<string[]> {
  const packages = new Set<string>()
  const read = new Set<string>()
  const follow = async (path: string): Promise<void> => {
    if (read.has(path)) return
    read.add(path)
    const file = parseRequirements(await readFile(path, 'utf8'))
    for (const include of file.includes) await follow(join(dirname(path), include))
    for (const name of file.packages) packages.add(name)
  }
  await follow(join(converter, FILE))
  return [...packages]
}

/** Names the environment for a set of packages; another set is another environment. */
export function environmentName(packages: readonly string[]): string {
  const digest = createHash('sha256')
    .update([...packages].sort().join('\n'))
    .digest('hex')
  return `converter-${digest.slice(0, 12)}`
}
