import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { packageRoot } from '../../core/system/package-info.ts'

/** A fenced block of a page. */
export interface Block {
  /** The page, from the repository's root. */
  page: string
  /** The line of its fence, from 1. */
  line: number
  language: string
  text: string
  /** The comment before the fence, such as `untested: needs Docker`. */
  directive?: string
}

/** Pages whose commands have their own test. */
export const OWN_TESTS: Record<string, string> = {
  'docs/admin.md': 'test/docs/admin.thorough.test.ts',
  'docs/cluster-ray.md': 'test/plugins/machines/ray/cluster-ray.thorough.test.ts',
  'docs/install.md': 'test/packaging/package.thorough.test.ts',
  'docs/link.md': 'test/plugins/machines/link/link-guide.thorough.test.ts',
  'docs/plugins.md': 'test/command-line/plugin.thorough.test.ts'
}

/** Lists the README and all pages under docs. */
export function pages(): string[] {
  const inFolder = (folder: string) =>
    readdirSync(join(packageRoot, folder))
      .filter(name => name.endsWith('.md'))
      .sort()
      .map(name => `${folder}/${name}`)
  return ['README.md', ...inFolder('docs'), ...inFolder('docs/measurements')]
}

export function readPage(page: string): string {
  return readFileSync(join(packageRoot, page), 'utf8')
}

export function exists(path: string): boolean {
  return existsSync(join(packageRoot, path))
}

/** Returns the fenced blocks of a page in order. */
export function getBlocks(page: string): Block[] {
  const lines = readPage(page).split('\n')
  const blocks: Block[] = []
  for (let at = 0; at < lines.length; at++) {
    const fence = /^```(\w*)/.exec(lines[at]!)
    if (!fence) continue
    const end = lines.indexOf('```', at + 1)
    if (end === -1) throw new Error(`${page}:${at + 1}: the block has no end`)
    const before = lines.slice(0, at).findLast(line => line.trim() !== '') ?? ''
    const directive = /^<!-- (.*) -->$/.exec(before)?.[1]
    blocks.push({
      page,
      line: at + 1,
      language: fence[1]!,
      text: `${lines.slice(at + 1, end).join('\n')}\n`,
      ...(directive === undefined ? {} : { directive })
    })
    at = end
  }
  return blocks
}

/** Returns a page with empty lines instead of its fenced blocks. */
export function getProse(page: string): string {
  return readPage(page).replaceAll(/^```.*?^```$/gms, block => block.replaceAll(/[^\n]/g, ''))
}

/** Returns the anchors of a page, as GitHub generates them from headings. */
export function getAnchors(page: string): Set<string> {
  const headings = [...getProse(page).matchAll(/^#{1,6} (.*)$/gm)].map(([, text]) => text!)
  const anchors = new Set<string>()
  for (const heading of headings) {
    const plain = heading.replaceAll(/\[([^\]]*)\]\([^)]*\)/g, '$1').toLowerCase()
    const anchor = plain.replaceAll(/[^\p{L}\p{N}_ -]/gu, '').replaceAll(' ', '-')
    let unique = anchor
    for (let number = 1; anchors.has(unique); number++) unique = `${anchor}-${number}`
    anchors.add(unique)
  }
  return anchors
}
