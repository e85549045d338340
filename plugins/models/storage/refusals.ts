import type { Model } from '../../../core/contracts/models.ts'
import type { StoredVariant } from '../../../core/contracts/storage.ts'
import { CorralError, errorMessage, isSystemError } from '../../../core/errors.ts'
import { bareName, nameText, type RequestedName } from '../../../core/models/model-name.ts'
import { originInWords } from '../../../core/models/stored-variant.ts'
import { diskRefusal } from '../../../core/system/disk-space.ts'

const modelError = (code: 'model_exists' | 'model_not_found', message: string) =>
  new CorralError(code, message, { param: 'model' })

/** A model that is there came from elsewhere than what is to be stored under its name. */
export function modelExists({ model, origin }: StoredVariant): CorralError {
  const name = bareName(model)
  return modelError(
    'model_exists',
    `"${name}" is there already and ${originInWords(origin)}; these files are not the same. ` +
      `Choose another name, or remove it first with "corral rm ${name}".`
  )
}

/** For what is to be made under the label of what was made under the bare name. */
export function labelTaken({ model, label }: StoredVariant): CorralError {
  const name = bareName(model)
  return modelError(
    'model_exists',
    `"${name}" is stored under the label ${label} already. Choose another tag than "${label}", or make "${name}" again.`
  )
}

/** How many names a message lists. */
const MAX_NAMED = 3

/** What helps those who asked for a model that is not here. */
interface NotHere {
  /** Names that may have been meant instead. */
  similar?: readonly string[]
  /** The names of all models, for where nothing is similar. */
  here?: readonly string[]
  /** Whether a pull by this very name would find it. */
  mayBePulled?: boolean
}

/** @param present the model's variants; empty when there is no such model */
export function modelNotFound(
  name: RequestedName,
  present: readonly Pick<Model, 'label' | 'isDefault'>[],
  { similar = [], here = [], mayBePulled = true }: NotHere = {}
): CorralError {
  const bare = bareName(name)
  if (present.length > 0) {
    const labels = present.map(({ label, isDefault }) => (isDefault ? `${label} (the default)` : label)).join(', ')
    return modelError('model_not_found', `The model "${bare}" has no variant "${name.variant}". It has ${labels}.`)
  }
  const full = nameText(name)
  const next = mayBePulled
    ? `"corral pull ${full}" downloads it.`
    : `"corral search ${name.name}" looks for it at the hubs.`
  return modelError(
    'model_not_found',
    `There is no model "${bare}" here. ${whatElse(similar, here)}"corral list" shows what there is; ${next}`
  )
}

function whatElse(similar: readonly string[], here: readonly string[]): string {
  const quoted = (names: readonly string[]) => names.slice(0, MAX_NAMED).map(name => `"${name}"`)
  if (similar.length > 0) return `Did you mean ${orList(quoted(similar))}? `
  if (here.length === 0) return ''
  const more = here.length > MAX_NAMED ? ` and ${here.length - MAX_NAMED} more` : ''
  return `Here ${here.length === 1 ? 'is' : 'are'} ${quoted(here).join(', ')}${more}. `
}

const orList = (names: readonly string[]) =>
  names.length < 2 ? names.join('') : `${names.slice(0, -1).join(', ')} or ${names.at(-1)}`

/** For an alias of a model that is not here. */
export function aliasOfNothing(alias: RequestedName, target: RequestedName): CorralError {
  const full = nameText(target)
  return modelError(
    'model_not_found',
    `"${bareName(alias)}" is another name of "${full}", given in config.yaml, and there is no such model here. ` +
      `"corral pull ${full}" downloads it.`
  )
}

/** For a name without an owner that several models have. */
export function ambiguousName(name: RequestedName, models: readonly Model[]): CorralError {
  const full = models.map(({ model: { owner, name: bare } }) => nameText({ ...name, owner, name: bare })).sort()
  const shown = full.length > 10 ? [...full.slice(0, 10), `${full.length - 10} more`] : full
  const message = `"${nameText(name)}" may be ${orList(shown)}. Send one of these names.`
  return new CorralError('model_not_found', message, { param: 'model', details: { candidates: full } })
}

/** Explains a failed write into the models folder; returns anything else as it is. */
export function writeFailure(models: string, error: unknown): unknown {
  if (isSystemError(error, 'ELOCKED', 'ECOMPROMISED')) {
    const what = `Another process writes into the models folder at the same time: ${errorMessage(error)}.`
    const advice = 'Only one server may use a models folder; stop the other one, then try again.'
    return new CorralError('internal', `${what} ${advice}`, { cause: error })
  }
  // The files that are imported may be unreadable too.
  if (isSystemError(error, 'EACCES', 'EPERM') && !error.path?.startsWith(models)) return error
  return diskRefusal(error, 'The models were not changed', 'models') ?? error
}
