# The tests of every part, for ctest. `make test` runs those without the label complete.

foreach(part layer_norm fused_layer_norm)
  doctest_program(${part}_test reference_cpu/tests/${part}_test.cpp LIBRARIES reference_cpu)
  add_test(NAME reference_${part} COMMAND ${part}_test)
endforeach()

doctest_program(harness_test common/harness/tests/harness_test.cpp LIBRARIES harness)
add_test(NAME harness COMMAND harness_test)

# Every kernel has a program of its own, so that it can be built and tested alone.
set(kernel_ids ${chapter_ids} ${library_ids})
list(TRANSFORM chapter_ids APPEND _kernel OUTPUT_VARIABLE chapter_kernels)
list(FILTER chapter_kernels EXCLUDE REGEX "^my")  # a reader's own may be unfinished, and fails in its own test alone
if(chapter_ids MATCHES "(^|;)my")
  add_executable(committed_chapters)  # what the tests run in place of `chapters`
  target_link_libraries(committed_chapters PRIVATE main ${chapter_kernels})
endif()
list(TRANSFORM library_ids APPEND _kernel OUTPUT_VARIABLE library_kernel_objects)
set(kernels ${chapter_kernels} ${library_kernel_objects})
add_library(chapter_test OBJECT common/harness/tests/complete_test.cpp
                                common/harness/tests/quick_fused_test.cpp
                                common/harness/tests/quick_test.cpp
                                common/harness/tests/quick_values_test.cpp)
target_link_libraries(chapter_test PUBLIC harness PRIVATE quick_to_build)
add_custom_target(chapter_tests)
add_custom_target(library_kernel_tests)
foreach(id IN LISTS kernel_ids)
  add_executable(${id}_test)
  if(id MATCHES "^lib_")
    add_dependencies(library_kernel_tests ${id}_test)
  else()
    add_dependencies(chapter_tests ${id}_test)
  endif()
  target_link_libraries(${id}_test PRIVATE doctest_main chapter_test ${id}_kernel)
  if(BACKEND STREQUAL "cpu" AND NOT SANITIZE)  # where all kernels are launched, and known
    set(launcher python3 -B ${CMAKE_SOURCE_DIR}/common/tools/test_chapter.py $<TARGET_FILE:${id}_test>
                 $<TARGET_OBJECTS:${id}_kernel>)
  else()
    set(launcher ${id}_test)
  endif()
  set(until)
  if(id MATCHES "^my")  # of a kernel that is not written yet, the first faults say enough
    set(until --abort-after=4)
  endif()
  add_test(NAME ${id} COMMAND ${launcher} --test-suite=quick ${until})
  add_test(NAME ${id}_complete COMMAND ${id}_test --test-suite=complete)
  set_tests_properties(${id}_complete PROPERTIES LABELS complete)
endforeach()

if(BACKEND STREQUAL "cpu")
  set_source_files_properties(common/harness/tests/bad_launch.cu PROPERTIES LANGUAGE CXX
                                                                    COMPILE_OPTIONS "-xc++")
  target_compile_definitions(chapter_test PRIVATE LNC_CPU_BACKEND $<$<BOOL:${SANITIZE}>:LNC_SANITIZE>)
  foreach(id IN LISTS kernel_ids)
    # Two blocks at a time even on one core, so that a lost atomic shows.
    set_tests_properties(${id} ${id}_complete PROPERTIES ENVIRONMENT
                         "OMP_NUM_THREADS=2;OMP_WAIT_POLICY=passive")
  endforeach()
endif()

doctest_program(chapters_test common/harness/tests/chapters_test.cpp
                common/harness/tests/bad_launch.cu LIBRARIES harness ${kernels})
add_test(NAME chapters COMMAND chapters_test --test-suite-exclude=complete)
add_test(NAME chapters_complete COMMAND chapters_test --test-suite=complete)
set_tests_properties(chapters_complete PROPERTIES LABELS complete)
doctest_program(dispatch_table_test common/library/tests/dispatch_table_test.cpp
                LIBRARIES dispatch ${kernels})
add_test(NAME dispatch_table COMMAND dispatch_table_test)

if(BACKEND STREQUAL "cpu")
  doctest_program(simt_machine_test common/simt/tests/machine_test.cpp LIBRARIES simt)
  target_compile_options(simt_machine_test PRIVATE -g1 -UNDEBUG)  # as a kernel is compiled
  add_test(NAME simt_machine COMMAND simt_machine_test)
  doctest_program(simt_language_test common/simt/tests/language_test.cpp LIBRARIES simt)
  add_test(NAME simt_language COMMAND simt_language_test)
  doctest_program(simt_facades_test common/simt/tests/facades_test.cpp LIBRARIES simt)
  target_include_directories(simt_facades_test BEFORE PRIVATE common/simt/include)
  add_test(NAME simt_facades COMMAND simt_facades_test)
  doctest_program(simt_hopper_test common/simt/tests/hopper_test.cpp LIBRARIES simt)
  add_test(NAME simt_hopper COMMAND simt_hopper_test)
  doctest_program(simt_gpus_test common/simt/tests/gpus_test.cpp LIBRARIES simt)
  target_compile_options(simt_gpus_test PRIVATE -g1)
  add_test(NAME simt_gpus COMMAND simt_gpus_test)
  doctest_program(library_test common/library/tests/library_test.cpp LIBRARIES lnc reference_cpu)
  add_test(NAME library COMMAND library_test)

  # Out-of-bounds accesses of a kernel are the sanitizers' to see.
  set(sanitizers -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_executable(simt_memory_test common/simt/tests/memory_test.cpp ${simt_sources})
  target_link_libraries(simt_memory_test PRIVATE project_options quick_to_build)
  target_compile_options(simt_memory_test PRIVATE ${sanitizers})
  target_link_options(simt_memory_test PRIVATE ${sanitizers})
  add_test(NAME simt_memory COMMAND simt_memory_test)
endif()

# Those of the book need it, and a browser: test_book.sh.
file(GLOB_RECURSE python_tests CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/chapters/*_test.py ${CMAKE_SOURCE_DIR}/common/*_test.py
     ${CMAKE_SOURCE_DIR}/notebooks/*_test.py ${CMAKE_SOURCE_DIR}/reference_cpu/*_test.py)
list(FILTER python_tests EXCLUDE REGEX "/common/(book|watch)/|/(cycles|pytorch)_test\\.py$")
if(BACKEND STREQUAL "cuda")
  list(FILTER python_tests EXCLUDE REGEX "/(c_example|dispatch|lab)_test\\.py$")
  add_executable(philox_words common/harness/tests/philox_words.cpp)
  target_link_libraries(philox_words PRIVATE project_options)
  add_python_tests(common/harness/tests/pytorch_test.py common/bench/tests/cycles_test.py)
  set_tests_properties(cycles PROPERTIES RUN_SERIAL TRUE)  # the GPU to itself
endif()
add_python_tests(${python_tests})
# check_file builds the machine twice more, and some thirty programs.
set_tests_properties(torch_transformers_norms check_file PROPERTIES LABELS complete)
