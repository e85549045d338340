import { readdirSync, readFileSync } from 'node:fs'
import { delimiter, join } from 'node:path'
import t from 'tap'
import { programFolders, tryLanguage } from '../clients/programs.ts'

// The first run downloads a hundred megabytes of packages.
t.setTimeout(1_200_000)

const { source, built } = programFolders('Java')
const classes = join(built, 'classes')
/** Maven writes the paths of the packages here. Their versions follow from the file with the direct dependencies. */
const list = join(built, 'class-path.txt')
const packages = () => readFileSync(list, 'utf8').trim()
tryLanguage(t, {
  language: 'Java',
  tools: ['java', 'javac', 'mvn'],
  fetch: [
    'mvn',
    '-q',
    '-B',
    'org.apache.maven.plugins:maven-dependency-plugin:3.8.1:build-classpath',
    `-Dmdep.outputFile=${list}`
  ],
  build: () => {
    const sources = readdirSync(source).filter(name => name.endsWith('.java'))
    return ['javac', '-nowarn', '-proc:none', '-cp', packages(), '-d', classes, ...sources]
  },
  start: () => ['java', '-cp', `${classes}${delimiter}${packages()}`, 'Trials']
})
