import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { packageRoot } from '../../core/system/package-info.ts'

function find(): string | undefined {
  if (process.env.CORRAL_CONVERSION_PYTHON) return process.env.CORRAL_CONVERSION_PYTHON
  try {
    const { python } = JSON.parse(
      readFileSync(join(packageRoot, '.cache', 'conversion-python', 'path.json'), 'utf8')
    ) as { python: string }
    return existsSync(python) ? python : undefined
  } catch {
    return undefined
  }
}

const found = find()
if (found === undefined && process.env.CI) {
  throw new Error('Conversions are always tested in CI: run "npm run setup:conversion" before the tests.')
}

/** A Python that can run the converter: CORRAL_CONVERSION_PYTHON, else what `npm run setup:conversion` made. */
export const conversionPython = found ?? ''

/** For tests that convert for real: they say so where there is nothing to do that with. */
export const realConversion = {
  skip:
    found === undefined
      ? 'SAFETENSORS CONVERSION IS NOT TESTED HERE: there is no Python for it. Run "npm run setup:conversion" first.'
      : false
}

/** The SafeTensors form of the demo model. */
export const TINY_SAFETENSORS = join(packageRoot, 'test', 'fixtures', 'tiny-chat-safetensors')
