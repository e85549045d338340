import { execFileSync } from 'node:child_process'
import { existsSync, readFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import t from 'tap'
import { packageRoot } from '../../core/system/package-info.ts'

/* Promises of ARCHITECTURE.md and of the README of each directory that no other test checks. */

const files = execFileSync('git', ['ls-files', '--cached', '--others', '--exclude-standard'], {
  cwd: packageRoot,
  encoding: 'utf8'
})
  .split('\n')
  .filter(name => existsSync(join(packageRoot, name)))
const read = (file: string) => readFileSync(join(packageRoot, file), 'utf8')
const countWords = (text: string) => text.split(/\s+/).filter(word => /\w/.test(word)).length

t.test('ARCHITECTURE.md is one page, and each README fits in five minutes', async t => {
  t.ok(countWords(read('ARCHITECTURE.md')) <= 900, `${countWords(read('ARCHITECTURE.md'))} words`)
  const pages = files.filter(name => /^(core|command-line|plugins|runtimes|scripts)\/(.*\/)?README\.md$/.test(name))
  t.ok(pages.length > 10)
  for (const page of pages) t.ok(countWords(read(page)) <= 600, `${page}: ${countWords(read(page))} words`)
})

t.test('links and paths in ARCHITECTURE.md and each README lead to files', async t => {
  const pages = files.filter(name =>
    /^(ARCHITECTURE|(core|command-line|plugins|runtimes|scripts)\/(.*\/)?README)\.md$/.test(name)
  )
  for (const page of pages) {
    for (const [, link] of read(page).matchAll(/\]\((?!https?:)([^)#\s]+)(?:#[^)]*)?\)/g)) {
      t.ok(existsSync(join(packageRoot, dirname(page), link!)), `${page}: ${link}`)
    }
    for (const [, path] of read(page).matchAll(/`((?:[\w.-]+\/)*[\w.-]+\.(?:ts|tsx|mjs|py))`/g)) {
      const isThere = files.some(file => file === path || file.endsWith(`/${path}`))
      t.ok(isThere, `${page}: ${path}`)
    }
  }
})

t.test('sizes in ARCHITECTURE.md are right within a tenth', async t => {
  const rows = [...read('ARCHITECTURE.md').matchAll(/^\| (.*?) \| .* \| ([\d,]+) \|$/gm)]
  t.ok(rows.length > 8)
  for (const [, names, size] of rows) {
    const folders = [...names!.matchAll(/\]\(([\w/-]+?)(?:\/README\.md)?\)/g)].map(([, folder]) => `${folder}/`)
    const own = files.filter(file => /\.tsx?$/.test(file) && folders.some(folder => file.startsWith(folder)))
    const lines = own.reduce((sum, file) => sum + read(file).split('\n').length - 1, 0)
    const stated = Number(size!.replace(',', ''))
    t.ok(Math.abs(lines - stated) <= lines / 10, `${folders}: ${lines} lines, stated ${stated}`)
  }
})

t.test('decisions use no clock, file or process', async t => {
  const decisions = files.filter(file =>
    /^(plugins\/running\/scheduler\/(decide|eviction|turns|request-queue|scheduler-state)|runtimes\/llama-cpp\/ranking|runtimes\/llama-server\/hang-watch|plugins\/models\/download\/choice\/(choice|choose|quantizations))[\w-]*\.ts$/.test(
      file
    )
  )
  t.ok(decisions.length >= 7, decisions.join(' '))
  for (const file of decisions) {
    t.notMatch(read(file), /from 'node:|Date\.now|performance\.now|\bprocess\.|await /, file)
  }
})

t.test('commands import types from plugins, and code only for work without a server', async t => {
  // Keys and Ray are managed when no server runs, doctor looks for programs, llama-swap's commands are converted,
  // verify and bundle read manifests and records, and the list of built-in plugins is needed to start one.
  const allowed =
    /(plugins\/(built-in|people\/security\/key-[\w-]+|machines\/ray\/ray-[\w-]+|models\/storage\/manifest)|llama-cpp\/(builds-directory|kinds\/scores)|remote\/programs\/program-settings|llama-server\/server-command)\.ts/
  for (const file of files.filter(name => /^command-line\/.*\.ts$/.test(name))) {
    const imports =
      /^import (?!type).*'(\.\.\/)+(plugins|runtimes)\/.*$|import\('(\.\.\/)+(plugins|runtimes)\/[^']*'\)/gm
    for (const [call] of read(file).matchAll(imports)) {
      t.match(call, allowed, `${file}: ${call}`)
    }
  }
})
