import { execFileSync } from 'node:child_process'
import { cpSync, mkdirSync, readFileSync, realpathSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { packageRoot } from '../../core/system/package-info.ts'

t.test('npm links the man page of a global installation', { skip: process.platform === 'win32' }, async t => {
  const folder = t.testdir({ package: { scripts: {}, docs: {} } })
  const made = join(folder, 'package')
  const { name, version, bin, man } = JSON.parse(readFileSync(join(packageRoot, 'package.json'), 'utf8'))
  // The package without the parts that take long to build and install.
  writeFileSync(join(made, 'package.json'), JSON.stringify({ name, version, bin, man }))
  mkdirSync(join(made, 'scripts'), { recursive: true })
  for (const file of [bin.corral, ...man]) cpSync(join(packageRoot, file), join(made, file))
  execFileSync('npm', ['pack', '--silent'], { cwd: made })
  const prefix = join(folder, 'prefix')
  execFileSync('npm', ['install', '--global', '--prefix', prefix, '--silent', '--offline', `./corral-${version}.tgz`], {
    cwd: made
  })
  const page = join(prefix, 'share', 'man', 'man1', 'corral.1')
  t.equal(realpathSync(page), join(realpathSync(prefix), 'lib', 'node_modules', 'corral', 'docs', 'corral.1'))
  t.match(readFileSync(page, 'utf8'), /^\.TH/m)
})
