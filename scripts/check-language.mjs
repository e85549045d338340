/**
 * Checks what a program can see of CONTRIBUTING.md's rules for language: words that have a plainer one, names of limits,
 * and, where CI is set, the subjects of commits. Prints each place with what to write instead, and exits with 1.
 */
import { execFileSync, spawnSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { root } from './inputs.mjs'

/** Words that native readers stumble over, and what to write instead. */
const WORDS = [
  ['anew', 'again'],
  ['lest', 'so that … not'],
  ['whom', 'a sentence with a subject: "the clients that …"'],
  ['heed(s|ed)?', 'follow, obey'],
  ['hinder(s|ed)?', 'prevent, block'],
  ['reckon(s|ed)?', 'count, estimate'],
  ['doomed', 'what fails, and why'],
  ['tells of', 'reports'],
  ['in the place of', 'instead of'],
  ['goes on', 'continues'],
  ['so (many|much) [a-z]+ (as|of)', 'this many, as many'],
  ['Of (these|those|several|equal|what)', 'normal word order'],
  ['(?<![Tt]here )(is|are) no (?!longer|more|less|different|better|worse|doubt|such)[a-z]+ (of|that)', '"is not a …"']
].map(([word, instead]) => ({ pattern: new RegExp(`(?<![\\w.-])${word}(?![\\w-])`), instead }))

const LIMITS = {
  pattern: /\b(MOST|LONGEST|LARGEST|LEAST|SHORTEST|SMALLEST|FEWEST)(_[A-Z]+)*\b/,
  instead: 'MAX_… or MIN_…'
}

/** Commits before this one had other rules. */
const FIRST_COMMIT = 'ddfb6369'
const MAX_SUBJECT_LENGTH = 72

const git = (...args) => execFileSync('git', args, { cwd: root, encoding: 'utf8', maxBuffer: 1 << 28 })

/** Generated files, other people's words, and this list. */
const SKIPPED =
  /^(THIRD_PARTY_NOTICES\.md|scripts\/check-language\.mjs|test\/fixtures\/|plugins\/models\/storage\/demo-model\/|docs\/measurements\/)/

const found = []
const files = git('ls-files').split('\n')
for (const file of files.filter(file => /\.(ts|tsx|mjs|py|md)$/.test(file) && !SKIPPED.test(file))) {
  const isCode = !file.endsWith('.md')
  for (const [index, line] of readFileSync(`${root}/${file}`, 'utf8').split('\n').entries()) {
    for (const { pattern, instead } of isCode ? [...WORDS, LIMITS] : WORDS) {
      const word = pattern.exec(line)?.[0]
      if (word) found.push(`${file}:${index + 1}: "${word}". Write instead: ${instead}.`)
    }
  }
}

if (process.env.CI) {
  // A shallow clone has the newest commit only.
  const isThere = spawnSync('git', ['cat-file', '-e', FIRST_COMMIT], { cwd: root }).status === 0
  const range = isThere ? [`${FIRST_COMMIT}..HEAD`] : ['-1']
  for (const subject of git('log', '--format=%s', ...range)
    .split('\n')
    .filter(Boolean)) {
    if (subject.length > MAX_SUBJECT_LENGTH)
      found.push(`Commit "${subject}" has more than ${MAX_SUBJECT_LENGTH} characters.`)
    if (subject.includes(';')) found.push(`Commit "${subject}" has two changes. Make two commits of it.`)
  }
}

if (found.length > 0) {
  console.error(found.join('\n'))
  process.exit(1)
}
