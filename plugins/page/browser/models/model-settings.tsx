import { useState } from 'preact/hooks'
import type { ReloadReport } from '../../../../core/contracts/native-records.ts'
import { useReply } from '../machine/use-reply.ts'
import { notify } from '../parts/controls.tsx'
import { type ApiError, ask } from '../state/api.ts'
import { fill, texts } from '../texts/texts.ts'

interface ModelSettings {
  section: string
  file: string
  settings: Record<string, unknown>
  revision: string
}

/** Options with their own fields and allowed values. */
const OPTIONS = [
  { name: 'num_ctx', step: 1, min: 0 },
  { name: 'num_parallel', step: 1, min: 1 },
  { name: 'n_gpu_layers', step: 1, min: -1 },
  { name: 'temperature', step: 'any', min: 0 }
] as const
/** Settings other than options that have their own fields. */
const OWN_FIELDS = ['keep_alive', 'pin', 'aliases']

/** Edits the settings of a model in the configuration file. */
export function ModelSettingsForm({ name, onDone }: { name: string; onDone: () => void }) {
  const t = texts.value
  const { reply, fault, again } = useReply<ModelSettings>(`api/models/settings?model=${encodeURIComponent(name)}`)
  const [refusal, setRefusal] = useState<ApiError | undefined>(undefined)
  const [wrong, setWrong] = useState('')
  if (fault) return <p class="is-error">{fault}</p>
  if (!reply) return <p class="quiet">{t.loading}</p>
  const { settings, revision, file } = reply
  const options = objectOrNone(settings.options)
  const isField = (option: string) => OPTIONS.some(each => each.name === option) && typeof options[option] === 'number'
  const others = {
    ...Object.fromEntries(Object.entries(settings).filter(([key]) => !OWN_FIELDS.includes(key) && key !== 'options')),
    ...without(options, isField)
  }
  const save = async (form: FormData) => {
    let wanted: Record<string, unknown>
    try {
      wanted = settingsOf(form)
    } catch (error) {
      setWrong(fill(t.notJson, { reason: (error as Error).message }))
      return
    }
    setWrong('')
    setRefusal(undefined)
    try {
      const body = { model: name, settings: wanted, revision }
      const report = await ask<ReloadReport>('PUT', 'api/models/settings', { body })
      const notes = report.unknown.map(({ message }) => message)
      notify([report.applied.length === 0 ? t.settingsUnchanged : t.settingsSaved, ...notes].join(' '))
      onDone()
    } catch (error) {
      setRefusal(error as ApiError)
    }
  }
  return (
    // A new key makes the fields show the reloaded settings.
    <form
      key={revision}
      class="form"
      onSubmit={event => {
        event.preventDefault()
        void save(new FormData(event.currentTarget))
      }}
    >
      <p class="quiet">{fill(t.settingsIn, { file })}</p>
      <div class="option-fields">
        {OPTIONS.map(({ name: option, ...bounds }) => (
          <label key={option}>
            <span lang="en">{option}</span>
            <input
              class="field"
              type="number"
              name={option}
              {...bounds}
              placeholder={t.serverDefault}
              defaultValue={isField(option) ? String(options[option]) : ''}
            />
          </label>
        ))}
        <label>
          <span lang="en">keep_alive</span>
          <input
            class="field"
            name="keep_alive"
            placeholder={t.serverDefault}
            defaultValue={String(settings.keep_alive ?? '')}
          />
        </label>
        <label>
          <span lang="en">pin</span>
          <select class="field" name="pin" defaultValue={String(settings.pin ?? '')}>
            <option value="">{t.serverDefault}</option>
            <option value="true">{t.yes}</option>
            <option value="false">{t.no}</option>
          </select>
        </label>
      </div>
      <label>
        {t.aliases}
        <input
          class="field"
          name="aliases"
          autocomplete="off"
          defaultValue={Array.isArray(settings.aliases) ? settings.aliases.join(', ') : ''}
        />
      </label>
      <label>
        {t.otherSettings}
        <textarea
          class="field mono"
          name="others"
          rows={5}
          spellcheck={false}
          placeholder={'{\n  "max_concurrent": 2,\n  "options": {"top_p": 0.9}\n}'}
          defaultValue={Object.keys(others).length > 0 ? JSON.stringify(others, undefined, 2) : ''}
        />
      </label>
      {(wrong || refusal) && (
        <p class="is-error" role="alert">
          {wrong || refusal?.message}
        </p>
      )}
      <footer class="dialog-foot">
        {refusal?.code === 'settings_changed' && (
          <button
            type="button"
            class="button"
            onClick={() => {
              setRefusal(undefined)
              again()
            }}
          >
            {t.readAgain}
          </button>
        )}
        <button type="submit" class="button is-main">
          {t.save}
        </button>
      </footer>
    </form>
  )
}

const objectOrNone = (value: unknown) =>
  typeof value === 'object' && value !== null ? (value as Record<string, unknown>) : {}

/** Options and settings without a field. */
function without(options: Record<string, unknown>, isField: (option: string) => boolean) {
  const left = Object.fromEntries(Object.entries(options).filter(([option]) => !isField(option)))
  return Object.keys(left).length > 0 ? { options: left } : {}
}

/** Reads the fields. Empty ones are not set. @throws SyntaxError unless the last field is a JSON object */
function settingsOf(form: FormData): Record<string, unknown> {
  const text = (field: string) => String(form.get(field) ?? '').trim()
  const written: unknown = text('others') ? JSON.parse(text('others')) : {}
  if (typeof written !== 'object' || written === null || Array.isArray(written)) throw new SyntaxError('{ … }')
  const settings: Record<string, unknown> = { ...written }
  const options: Record<string, unknown> = { ...objectOrNone(settings.options) }
  for (const { name } of OPTIONS) if (text(name) !== '') options[name] = Number(text(name))
  // Keep invalid groups, so that the server can refuse them.
  if (Object.keys(options).length > 0) settings.options = options
  const keepAlive = text('keep_alive')
  if (keepAlive !== '') settings.keep_alive = /^-?\d+(\.\d+)?$/.test(keepAlive) ? Number(keepAlive) : keepAlive
  if (text('pin') !== '') settings.pin = text('pin') === 'true'
  const aliases = text('aliases')
    .split(/[\s,]+/)
    .filter(Boolean)
  if (aliases.length > 0) settings.aliases = aliases
  return settings
}
