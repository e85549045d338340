import type { StoredVariant } from '../../core/contracts/storage.ts'
import { CorralError, isSystemError, messageOf } from '../../core/errors.ts'
import { bareName, type ModelName } from '../../core/models/model-name.ts'
import { originInWords } from '../../core/models/stored-variant.ts'

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

/** @param present the model's variants; empty when there is no such model */
export function modelNotFound(
  name: ModelName,
  present: readonly Pick<StoredVariant, 'label' | 'isDefault'>[]
): CorralError {
  const bare = bareName(name)
  if (present.length === 0) {
    const tagged = name.variant === undefined ? bare : `${bare}:${name.variant}`
    return modelError(
      'model_not_found',
      `There is no model "${bare}" here. "corral list" shows what there is; "corral pull ${tagged}" downloads it.`
    )
  }
  const labels = present.map(({ label, isDefault }) => (isDefault ? `${label} (the default)` : label)).join(', ')
  return modelError('model_not_found', `The model "${bare}" has no variant "${name.variant}". It has ${labels}.`)
}

/** For a removal by an alias, which does not show what else goes with it. */
export function isAlias(alias: ModelName, { model }: StoredVariant): CorralError {
  const name = bareName(model)
  return modelError(
    'model_not_found',
    `"${bareName(alias)}" is only another name of "${name}", given in config.yaml. Remove "${name}" itself.`
  )
}

/** Explains a failed write into the models folder; returns anything else as it is. */
export function writeFailure(models: string, error: unknown): unknown {
  const cause = { cause: error }
  if (isSystemError(error, 'ENOSPC', 'EDQUOT')) {
    const advice = 'Remove models that are not needed, or choose another disk with CORRAL_MODELS.'
    return new CorralError('insufficient_storage', `The disk of ${models} is full. ${advice}`, cause)
  }
  if (isSystemError(error, 'EACCES', 'EPERM', 'EROFS')) {
    const what = `corral may not use ${error.path ?? models}: ${messageOf(error)}.`
    return new CorralError('internal', `${what} Give its user the right to read and write there.`, cause)
  }
  if (isSystemError(error, 'ELOCKED', 'ECOMPROMISED')) {
    const what = `Another process writes into ${models} at the same time: ${messageOf(error)}.`
    const advice = 'Only one server may use a models folder; stop the other one, then try again.'
    return new CorralError('internal', `${what} ${advice}`, cause)
  }
  return error
}
