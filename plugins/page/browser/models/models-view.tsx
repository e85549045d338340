import { useState } from 'preact/hooks'
import { attempt, confirm, Menu, MenuItem, notify, openDialog, SearchField } from '../parts/controls.tsx'
import { formatAgo, formatNumber, formatSize } from '../parts/formats.ts'
import { Button } from '../parts/forms.tsx'
import { InstallConverter } from '../parts/install-converter.tsx'
import { Card, Fault, joinFacts, PageView } from '../parts/layout.tsx'
import { MemoryPools } from '../parts/memory-pools.tsx'
import { type ApiError, ask } from '../state/api.ts'
import { may } from '../state/me.ts'
import { lastModel } from '../state/preferences.ts'
import { checkRevisions, outdated } from '../state/revisions.ts'
import { go, linkTo } from '../state/route.ts'
import { conversions, engines, members, models } from '../state/server-state.ts'
import { fill, labelFor, plural, statusText, texts } from '../texts/texts.ts'
import { Downloads, GetModels } from './get-models.tsx'
import { ModelDetails } from './model-details.tsx'
import { ModelSettingsForm } from './model-settings.tsx'

type ModelState = (typeof models.value)[number]
type EngineState = (typeof engines.value)[number]

/** The installed models, the memory they use, and the hubs. */
export function ModelsView({ path: [tab = 'here', wanted] }: { path: string[] }) {
  const t = texts.value
  const tabs = [
    { text: t.modelsHere, href: linkTo('models'), isCurrent: tab === 'here' },
    { text: t.getModels, href: linkTo('models', 'get'), isCurrent: tab === 'get' }
  ]
  return (
    <PageView title={t.models} tabs={may('operator') ? tabs : tabs.slice(0, 1)}>
      {may('operator') && <Downloads />}
      {tab === 'get' && may('operator') ? <GetModels key={wanted} wanted={wanted} /> : <ModelsHere />}
    </PageView>
  )
}

function ModelsHere() {
  const t = texts.value
  const [wanted, setWanted] = useState('')
  const [isChecking, setChecking] = useState(false)
  const all = models.value
  const check = async () => {
    setChecking(true)
    const fault = await checkRevisions(all.map(({ name }) => name))
    setChecking(false)
    notify(revisionsText(fault))
  }
  const found = all.filter(({ name }) => name.toLowerCase().includes(wanted.toLowerCase()))
  return (
    <>
      <MemoryPools />
      {all.length > 8 && <SearchField label={t.findModel} value={wanted} onInput={setWanted} />}
      <ul class="plain-list">
        {found.map(model => (
          <ModelLine key={model.name} model={model} />
        ))}
      </ul>
      {all.length > 0 && may('operator') && <Button disabled={isChecking} onClick={check} text={t.checkRevisions} />}
      {all.length === 0 && (
        <p class="quiet">
          {t.noModels} {may('operator') && <a href={linkTo('models', 'get')}>{t.getModel}</a>}
        </p>
      )}
    </>
  )
}

/** Describes the result of a check for newer revisions. */
function revisionsText(fault: ApiError | undefined): string {
  const t = texts.value
  const count = outdated.value.size
  const found = count > 0 ? plural(t.newerFound, count) : fault ? '' : t.noNewer
  return `${found} ${fault ? fill(t.notChecked, { reason: fault.message }) : ''}`.trim()
}

function ModelLine({ model }: { model: ModelState }) {
  const t = texts.value
  const { name, capabilities, details, failure, size } = model
  const remote = remotePlace(model)
  const own = engines.value.filter(engine => engine.name.toLowerCase() === name.toLowerCase())
  const isLoaded = own.some(({ state }) => state === 'loaded')
  const facts = [
    details.parameter_size,
    details.quantization_level,
    size > 0 && formatSize(size),
    remote ?? formatAgo(Date.parse(model.modified_at))
  ]
  const load = () => attempt(() => ask('POST', 'api/load', { body: { model: name, stream: false } }))
  const unload = () => attempt(() => ask('POST', 'api/stop', { body: { model: name } }))
  const remove = () => {
    const work = () => attempt(() => ask('DELETE', 'api/delete', { body: { model: name } }))
    const text = fill(t.deleteModelText, { size: formatSize(size) })
    confirm(fill(t.deleteModelTitle, { model: name }), text, t.delete, work)
  }
  const makeDefault = async () => {
    const isDone = await attempt(() => ask('POST', 'api/default', { body: { model: name } }))
    if (isDone) notify(fill(t.isDefault, { model: name }))
  }
  const showDetails = () => openDialog(name, close => <ModelDetails name={name} onDone={close} />)
  const showSettings = () =>
    openDialog(`${t.settings}: ${name}`, close => <ModelSettingsForm name={name} onDone={close} />)
  const chat = () => {
    lastModel.value = name
    go(['chat'])
  }
  const actions = (
    <>
      <span class="row">
        {model.pinned && <span class="chip">{t.pinned}</span>}
        {outdated.value.has(name) && <span class="chip is-accent">{t.newer}</span>}
        {capabilities
          .filter(capability => capability !== 'completion')
          .map(capability => (
            <span key={capability} class="chip">
              {labelFor(t.capabilities, capability)}
            </span>
          ))}
      </span>
      {capabilities.includes('completion') && <Button onClick={chat} text={t.chat} />}
      {may('operator') && own.length === 0 && <Button onClick={load} text={t.load} />}
      {may('operator') && own.length > 0 && (
        <Button icon="eject" onClick={unload} text={isLoaded ? t.unload : t.stopLoading} />
      )}
      <Menu label={`${t.more}: ${name}`} class="menu-end">
        {() => (
          <>
            <MenuItem onSelect={showDetails} text={t.details} />
            {may('admin') && <MenuItem onSelect={showSettings} text={t.settings} />}
            {may('operator') && !remote && name.includes(':') && (
              <MenuItem onSelect={makeDefault} text={t.makeDefault} />
            )}
            {may('operator') && !remote && <MenuItem icon="trash" danger onSelect={remove} text={t.delete} />}
          </>
        )}
      </Menu>
    </>
  )
  return (
    <Card title={name} facts={facts} actions={actions} class="model-line">
      {own.map(engine => (
        <EngineLine key={engine.mode} engine={engine} />
      ))}
      {conversions.value
        .filter(({ model }) => model === name && !own.some(({ state }) => state !== 'loaded'))
        .map(({ dtype, status, progress }) => (
          <WorkLine key={dtype} status={`${dtype}: ${statusText(status)}`} progress={progress} />
        ))}
      {failure && own.length === 0 && <Fault text={failure.message} />}
      {failure?.code === 'conversion_not_installed' && own.length === 0 && <InstallConverter onDone={load} />}
    </Card>
  )
}

/** The place of a model on another server, if known. */
function remotePlace({ name, format, remote_model: remote }: ModelState): string | undefined {
  const nodes = format === 'cluster' ? members.value.filter(({ models }) => models.includes(name)) : []
  const place = remote ?? nodes.map(node => node.name).join(', ')
  return remote === undefined && format !== 'cluster'
    ? undefined
    : fill(texts.value.remoteAt, { name: place || format })
}

function WorkLine({ status, progress }: { status: string; progress: number | undefined }) {
  return (
    <div class="engine-line">
      <p class="quiet">{status}</p>
      {progress !== undefined && <progress max={1} value={progress} aria-label={status} />}
    </div>
  )
}

/** The state of a model's engine: loading progress, or busy slots. */
function EngineLine({ engine }: { engine: EngineState }) {
  const t = texts.value
  if (engine.state !== 'loaded') {
    const { progress, status, state, member } = engine
    const text = status ? statusText(status) : labelFor(t.engineStates, state)
    return <WorkLine status={member === undefined ? text : `${member}: ${text}`} progress={progress} />
  }
  const { expires_at, mode, running, slots, queued, remote_model: remote } = engine
  const facts = [
    engine.member,
    remote !== undefined ? t.keyInUse : mode === 'chat' ? t.inMemory : `${t.inMemory} (${mode})`,
    engine.memory && `${t.memory} ${formatSize(engine.size)}`,
    fill(t.contextOf, { tokens: formatNumber(engine.context_length) }),
    remote === undefined && fill(t.slots, { running, all: slots }),
    queued > 0 && fill(t.waitingCount, { count: queued }),
    remote === undefined &&
      (expires_at.startsWith('2999') ? t.forEver : fill(t.until, { time: formatTime(expires_at) }))
  ]
  return <p class="engine-line is-loaded">{joinFacts(facts)}</p>
}

const formatTime = (iso: string) => new Date(iso).toLocaleTimeString([], { hour: '2-digit', minute: '2-digit' })
