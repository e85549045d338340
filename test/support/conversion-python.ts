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
/** A Python that can run the converter: CORRAL_CONVERSION_PYTHON, or the Python that `npm run setup:python` created. */
export const conversionPython = found ?? ''

/**
 * For tests with real conversions, which are skipped without a suitable Python.
 * @throws in CI, where nothing may be skipped
 */
export function realConversion(): { skip: string | false } {
  if (found !== undefined) return { skip: false }
  const skip = 'Conversion of SafeTensors is not tested: there is no Python for it. Run "npm run setup:python" first.'
  if (process.env.CI) throw new Error(skip)
  return { skip }
}

/** The SafeTensors form of the demo model. */
export const TINY_SAFETENSORS = join(packageRoot, 'test', 'fixtures', 'tiny-chat-safetensors')
